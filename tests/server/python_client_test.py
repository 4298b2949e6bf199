"""A client that is not ours: Python's gRPC with stubs made from the schema, against the program.

    python_client_test.py PROGRAM CHECKPOINT PROTO_ROOT [unittest arguments]

PROGRAM is the built `outrider`; CHECKPOINT a tiny model's directory; PROTO_ROOT holds the schema.
"""

import importlib
import json
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_tools import protoc

sys.path.insert(0, str(Path(__file__).parents[1] / 'testing'))
from program import LIMIT_S, Server, outrider  # noqa: E402

PROTO_ROOT = sys.argv[3]
TOKEN = 'a-token-of-the-python-client'
NO_PROXY = urllib.request.ProxyHandler({})

STUBS = tempfile.TemporaryDirectory()
assert protoc.main(['protoc', f'-I{PROTO_ROOT}', f'--python_out={STUBS.name}',
                    f'--grpc_python_out={STUBS.name}',
                    *map(str, Path(PROTO_ROOT).rglob('*.proto'))]) == 0
sys.path.insert(0, STUBS.name)
pb = importlib.import_module('outrider.v1.generation_pb2')
details_pb = importlib.import_module('outrider.v1.status_details_pb2')
pb_grpc = importlib.import_module('outrider.v1.generation_pb2_grpc')


def request(text, max_tokens=8, **parameters):
    return pb.GenerateRequest(text=text, sampling_params=pb.SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, **parameters))


def server(*options):
    return Server(options=('--http-port', '0', *options))


class Plain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(server())
        cls.channel = cls.enterClassContext(
            grpc.insecure_channel(cls.server.address, [('grpc.enable_http_proxy', 0)]))
        cls.stub = pb_grpc.GenerationServiceStub(cls.channel)

    def test_a_stream_and_an_answer_at_once_are_the_same(self):
        responses = list(self.stub.Generate(request('Once upon', 12), timeout=LIMIT_S))
        chunks = [r.chunk for r in responses[:-1]]
        complete = responses[-1].complete
        self.assertEqual(complete.completion_tokens, 12)
        self.assertEqual(complete.finish_reason, pb.FINISH_REASON_LENGTH)
        token_ids = [token for chunk in chunks for token in chunk.token_ids]
        once = self.stub.GenerateOnce(request('Once upon', 12), timeout=LIMIT_S)
        self.assertEqual(list(once.token_ids), token_ids)
        self.assertEqual(once.text, ''.join(chunk.text for chunk in chunks))
        self.assertEqual(once.complete.prompt_tokens, complete.prompt_tokens)

    def test_health(self):
        stub = health_pb2_grpc.HealthStub(self.channel)
        for service in ('', 'outrider.v1.GenerationService'):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT_S)
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)

    def test_a_bad_field_is_named_in_the_details(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.stub.GenerateOnce(request('x', top_p=1.5), timeout=LIMIT_S)
        error = raised.exception
        self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        details = details_pb.StatusDetails.FromString(
            dict(error.trailing_metadata())['grpc-status-details-bin'])
        self.assertEqual(details.details[0].type_url,
                         'type.googleapis.com/google.rpc.BadRequest')
        bad_request = details_pb.BadRequest.FromString(details.details[0].value)
        self.assertEqual(bad_request.field_violations[0].field, 'sampling_params.top_p')

    def test_sampling_options(self):
        def token_ids(**options):
            return list(self.stub.GenerateOnce(request('Once upon', 12, **options),
                                               timeout=LIMIT_S).token_ids)

        plain = token_ids()
        self.assertEqual(token_ids(logit_bias={plain[0]: 100}), [plain[0]] * 12)
        self.assertNotIn(plain[0], token_ids(logit_bias={plain[0]: -100}, min_p=0.5))
        self.assertNotEqual(token_ids(repetition_penalty=1.8, presence_penalty=1,
                                      frequency_penalty=1), plain)
        self.assertEqual(len(token_ids(logit_bias={plain[0]: 100}, stop_token_ids=[plain[0]],
                                       min_tokens=4)), 5)
        limits = self.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=LIMIT_S).limits
        self.assertEqual(limits.max_logit_bias, 300)

    def test_a_message_without_end_is_not_kept(self):
        """Its size is looked at once it is whole: memory is bounded before that."""
        def peak_mib():
            status = Path(f'/proc/{self.server.ranks[0]}/status').read_text()
            return int(re.search(r'VmHWM:\s+(\d+) kB', status)[1]) / 1024

        before = peak_mib()
        channel = self.enterContext(grpc.insecure_channel(
            self.server.address, [('grpc.enable_http_proxy', 0),
                                  ('grpc.max_send_message_length', -1)]))
        generate = channel.unary_unary('/outrider.v1.GenerationService/GenerateOnce')
        with self.assertRaises(grpc.RpcError) as raised:
            generate(bytes(900 << 20), timeout=LIMIT_S)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertLess(peak_mib() - before, 700)
        self.assertEqual(
            self.stub.GenerateOnce(request('Next'), timeout=LIMIT_S).complete.completion_tokens, 8)

    def test_the_server_names_a_request_without_a_name(self):
        call = self.stub.Generate(request('Hello'), timeout=LIMIT_S)
        self.assertRegex(dict(call.initial_metadata())['outrider-request-id'], r'^[0-9a-f]{16}$')
        list(call)

    def test_metrics_count_steps(self):
        def metrics():
            opener = urllib.request.build_opener(NO_PROXY)
            with opener.open(f'http://{self.server.http_address}/metrics', timeout=LIMIT_S) as text:
                lines = [line.decode().split() for line in text if not line.startswith(b'#')]
            return {name: float(value) for name, value in lines}

        before = metrics()
        guessing = request('Count', 20)
        guessing.speculation.drafter = 'random'
        guessing.speculation.num_speculative_tokens = 3
        answer = self.stub.GenerateOnce(guessing, timeout=LIMIT_S).complete
        # What was not measured before has no line then.
        grown = {name: value - before.get(name, 0) for name, value in metrics().items()}
        prefix = 'outrider_spec_decode_num_'
        speculation = answer.speculation
        self.assertGreater(speculation.num_draft_tokens, 0)
        # The last step may have verified tokens behind the end, which are not the answer's.
        self.assertGreaterEqual(grown[prefix + 'draft_tokens_total'], speculation.num_draft_tokens)
        self.assertGreaterEqual(grown[prefix + 'drafts_total'], speculation.num_spec_steps)
        self.assertGreaterEqual(grown['outrider_lookahead_tokens_count'], speculation.num_spec_steps)
        for phase in ('draft', 'target', 'verify', 'exchange', 'host'):
            self.assertGreater(grown[f'outrider_step_seconds_count{{phase="{phase}"}}'], 0)
        self.assertEqual(grown['outrider_time_to_first_token_seconds_count'], 1)
        self.assertEqual(grown['outrider_request_success_total{finished_reason="length"}'], 1)

    def test_a_cancelled_stream_ends(self):
        call = self.stub.Generate(request('Hello', 1900), timeout=LIMIT_S)
        next(call)
        call.cancel()
        with self.assertRaises(grpc.RpcError) as raised:
            list(call)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.CANCELLED)
        self.assertEqual(
            self.stub.GenerateOnce(request('Next'), timeout=LIMIT_S).complete.completion_tokens, 8)


class Secure(unittest.TestCase):
    """Mutual TLS and tokens, with files from the commands of docs/operations/security.md."""

    @classmethod
    def setUpClass(cls):
        cls.directory = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.make_authority('ca')
        cls.make_authority('stranger')
        cls.issue('server', 'subjectAltName=DNS:localhost,IP:127.0.0.1')
        cls.issue('client', 'keyUsage=digitalSignature')
        (cls.directory / 'tokens').write_text(f'# staff\n{TOKEN}\n')
        (cls.directory / 'tokens').chmod(0o600)
        cls.server = cls.enterClassContext(server(
            '--tls-cert', cls.file('server.pem'), '--tls-key', cls.file('server.key'),
            '--tls-client-ca', cls.file('ca.pem'), '--auth-token-file', cls.file('tokens'),
            '--log-format', 'json'))

    @classmethod
    def file(cls, name):
        return str(cls.directory / name)

    @classmethod
    def openssl(cls, *arguments):
        subprocess.run(['openssl', *arguments], cwd=cls.directory, check=True, timeout=LIMIT_S,
                       capture_output=True)

    @classmethod
    def make_authority(cls, name):
        cls.openssl('req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
                    '-days', '1', '-subj', f'/CN={name}', '-keyout', f'{name}.key',
                    '-out', f'{name}.pem')

    @classmethod
    def issue(cls, name, extension):
        (cls.directory / f'{name}.ext').write_text(extension)
        cls.openssl('req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
                    '-subj', f'/CN={name}', '-keyout', f'{name}.key', '-out', f'{name}.csr')
        cls.openssl('x509', '-req', '-in', f'{name}.csr', '-CA', 'ca.pem', '-CAkey', 'ca.key',
                    '-CAcreateserial', '-days', '1', '-extfile', f'{name}.ext',
                    '-out', f'{name}.pem')

    def channel(self, authority='ca', client='client', token=None):
        def contents(name):
            return (self.directory / name).read_bytes()
        credentials = grpc.ssl_channel_credentials(
            contents(f'{authority}.pem'), contents(f'{client}.key') if client else None,
            contents(f'{client}.pem') if client else None)
        if token:
            credentials = grpc.composite_channel_credentials(
                credentials, grpc.access_token_call_credentials(token))
        return self.enterContext(grpc.secure_channel(self.server.address, credentials,
                                                     [('grpc.enable_http_proxy', 0)]))

    def status(self, channel):
        stub = pb_grpc.GenerationServiceStub(channel)
        try:
            stub.GenerateOnce(request('Hello'), timeout=LIMIT_S)
            once = grpc.StatusCode.OK
        except grpc.RpcError as error:
            once = error.code()
        try:
            list(stub.Generate(request('Hello'), timeout=LIMIT_S))
            self.assertEqual(once, grpc.StatusCode.OK)
        except grpc.RpcError as error:
            self.assertEqual(once, error.code())
        return once

    def test_a_token_of_the_file_is_needed(self):
        self.assertEqual(self.status(self.channel(token=TOKEN)), grpc.StatusCode.OK)
        self.assertEqual(self.status(self.channel()), grpc.StatusCode.UNAUTHENTICATED)
        self.assertEqual(self.status(self.channel(token=TOKEN + 'x')),
                         grpc.StatusCode.UNAUTHENTICATED)

    def test_certificates_are_needed_on_both_sides(self):
        self.assertEqual(self.status(self.channel(authority='stranger', token=TOKEN)),
                         grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(self.status(self.channel(client=None, token=TOKEN)),
                         grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(self.status(self.channel(client='stranger', token=TOKEN)),
                         grpc.StatusCode.UNAVAILABLE)

    def test_health_needs_no_token(self):
        stub = health_pb2_grpc.HealthStub(self.channel())
        self.assertEqual(stub.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S).status,
                         health_pb2.HealthCheckResponse.SERVING)

    def test_the_programs_own_clients(self):
        tls = ['--address', self.server.address, '--tls-ca', self.file('ca.pem'),
               '--tls-cert', self.file('client.pem'), '--tls-key', self.file('client.key')]
        result = outrider('health', *tls)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, 'SERVING\n', ''))
        ask = ['generate', *tls, '--raw', '--max-tokens', '4', '--temperature', '0', 'Hello']
        result = outrider(*ask)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, '^UNAUTHENTICATED: ')
        result = outrider(*ask, '--auth-token-file', self.file('tokens'), '--format', 'json')
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(json.loads(result.stdout)['completion_tokens'], 0)

    def get(self, path, token=None):
        context = ssl.create_default_context(cafile=self.file('ca.pem'))
        context.load_cert_chain(self.file('client.pem'), self.file('client.key'))
        opener = urllib.request.build_opener(NO_PROXY,
                                             urllib.request.HTTPSHandler(context=context))
        headers = {'Authorization': f'Bearer {token}'} if token else {}
        try:
            with opener.open(urllib.request.Request(
                    f'https://{self.server.http_address}{path}', headers=headers),
                    timeout=LIMIT_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def test_http(self):
        self.assertEqual(self.get('/readyz'), (200, 'ready\n'))
        self.assertEqual(self.get('/metrics')[0], 401)
        status, metrics = self.get('/metrics', TOKEN)
        self.assertEqual(status, 200)
        self.assertIn('\noutrider_rank_up{rank="0"} 1\n', metrics)

    def test_http_takes_a_session_up_again(self):
        host, port = self.server.http_address.rsplit(':', 1)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = ssl.create_default_context(cafile=self.file('ca.pem'))
            context.load_cert_chain(self.file('client.pem'), self.file('client.key'))
            context.maximum_version = version
            session = None
            for again in (False, True):
                with (self.subTest(version=version, again=again),
                      context.wrap_socket(socket.create_connection((host, int(port)), LIMIT_S),
                                          server_hostname=host, session=session) as connection):
                    connection.sendall(b'GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n')
                    self.assertIn(b' 200 ', connection.makefile('rb').readline())
                    self.assertEqual(connection.session_reused, again)
                    session = connection.session


class Log(unittest.TestCase):
    def test_json_lines_and_a_trace(self):
        trace = self.enterContext(tempfile.NamedTemporaryFile('r'))
        with server('--log-format', 'json', '--trace', trace.name) as serving:
            channel = self.enterContext(
                grpc.insecure_channel(serving.address, [('grpc.enable_http_proxy', 0)]))
            pb_grpc.GenerationServiceStub(channel).GenerateOnce(
                pb.GenerateRequest(request_id='logged', text='Sesame and saffron',
                                   sampling_params=pb.SamplingParams(max_tokens=3,
                                                                     ignore_eos=True)),
                timeout=LIMIT_S)
            serving.process.terminate()
            serving.wait_for_end()
        objects = [json.loads(line) for line in serving.output.lines]
        ends = [o for o in objects if o.get('event') == 'request_end']
        self.assertEqual([(o['request_id'], o['code'], o['completion_tokens']) for o in ends],
                         [('logged', 'OK', 3)])
        self.assertNotIn('saffron', serving.log)
        events = json.load(trace)
        self.assertTrue({'plan', 'draft', 'target', 'verify', 'apply'} <=
                        {event['name'] for event in events if event['ph'] == 'X'})
        self.assertEqual([event['args']['request_id'] for event in events
                          if event['ph'] == 'b' and event['name'] == 'request'], ['logged'])


class Health(unittest.TestCase):
    def test_nobody_there(self):
        result = outrider('health', '--address', '127.0.0.1:1')
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, '^UNAVAILABLE: .*\n$')
        self.assertEqual(result.stdout, '')


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
