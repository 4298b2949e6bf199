#!/usr/bin/env python3
"""Clients that ask a server for health and GetServerInfo, each ten times a second.

    bench/busy_clients.py ADDRESS CLIENTS

Says `ready` once all have been answered, and at the end of its input how many calls a second were.
"""

import os
import sys
import threading
import time
from concurrent import futures

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serving import pb, pb_grpc

POLLS_PER_S = 10


class Client:
    """One connection of its own."""

    def __init__(self, address):
        channel = grpc.insecure_channel(address, [('grpc.use_local_subchannel_pool', 1)])
        self.health = health_pb2_grpc.HealthStub(channel)
        self.service = pb_grpc.GenerationServiceStub(channel)
        self.num_polls = 0
        self.poll()

    def poll(self):
        self.health.Check(health_pb2.HealthCheckRequest())
        self.service.GetServerInfo(pb.GetServerInfoRequest())
        self.num_polls += 1

    def poll_until(self, end):
        due = time.perf_counter()
        while not end.wait(max(0, due - time.perf_counter())):
            self.poll()
            due += 1 / POLLS_PER_S


def main():
    address, count = sys.argv[1], int(sys.argv[2])
    os.nice(19)  # what the clients themselves compute is not what is asked
    clients, end = [Client(address) for _ in range(count)], threading.Event()
    begin = time.perf_counter()
    with futures.ThreadPoolExecutor(count) as threads:
        polling = [threads.submit(client.poll_until, end) for client in clients]
        print('ready', flush=True)
        sys.stdin.read()
        end.set()
    for of_client in polling:
        of_client.result()  # raises what it did
    num_calls = 2 * sum(client.num_polls - 1 for client in clients)
    print(num_calls / (time.perf_counter() - begin))


if __name__ == '__main__':
    main()
