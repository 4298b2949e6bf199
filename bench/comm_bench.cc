#include "bench/comm_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "bench/bench_report.h"
#include "bench/core_link.h"
#include "core/buffer.h"
#include "core/error.h"
#include "core/float_environment.h"
#include "engine/step_plan.h"

namespace outrider {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kReplyTimeout{60};
constexpr std::chrono::microseconds kSpin{200};  // as a follower of the engine does
constexpr int64_t kPlanSequences[] = {1, 8, 64};
constexpr int kPlanDraftTokens = 4;
constexpr int kInARowOnGpu = 8;  // in one graph: the host starts them together, as in a step
constexpr int kWarmUpOnGpu = 2;  // rounds: a first run, a second that records

double seconds_of(const std::function<void()>& work) {
  const Clock::time_point start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Collective {
  std::string name;
  int64_t rows = 0;
  double bytes = 0;  // that each rank brings
  std::function<void()> run;
  std::optional<double> bound;  // seconds
  std::vector<double> samples;
};

// The three of the communicator, on buffers of this rank.
class Collectives {
 public:
  Collectives(const CommBenchOptions& options, BenchDevice& device, Communicator& communicator)
      : device_(device),
        communicator_(communicator),
        backend_(*device.backend),
        stream_(backend_.make_stream()),
        hidden_(options.hidden),
        most_floats_(*std::max_element(options.rows.begin(), options.rows.end()) * hidden_),
        mine_(backend_.allocate(sizeof(float) * most_floats_)),
        all_(backend_.allocate(sizeof(float) * most_floats_ * communicator.size())),
        meeting_(backend_.allocate(sizeof(float))) {
    communicator.reserve_sum(most_floats_);
  }
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  std::vector<Collective> list(const std::vector<int64_t>& rows,
                               const std::optional<CoreLink>& link) {
    const double ranks = communicator_.size();
    std::vector<Collective> all;
    for (const int64_t n : rows) {
      const double bytes = static_cast<double>(sizeof(float) * n * hidden_);
      const auto add = [&](const char* name, double bound, std::function<void()> run) {
        all.push_back({.name = name, .rows = n, .bytes = bytes, .run = std::move(run)});
        if (link) all.back().bound = bound;
      };
      const CoreLink cores = link.value_or(CoreLink{});
      // In place: each rank reads a block of every other part to add it, and every other block that
      // was added, and writes them all.
      add("all_reduce_sum", cores.bound(bytes, 2 * (ranks - 1) / ranks * bytes),
          [this, n] { communicator_.all_reduce_sum(mine(n), stream_); });
      // What a rank brings it has written before.
      add("all_gather", cores.bound(0, (ranks - 1) * bytes), [this, n] {
        const TensorView all = all_.view(DType::f32, {communicator_.size(), n, hidden_});
        communicator_.all_gather(mine(n), all, stream_);
      });
      // From the last rank, so that this one, whose times are told, receives.
      add("broadcast", cores.bound(0, bytes),
          [this, n] { communicator_.broadcast(mine(n), communicator_.size() - 1, stream_); });
    }
    return all;
  }

  // Seconds of one, begun by all ranks together. key: the collective's own.
  double time(const Collective& collective, uint64_t key) {
    // On the CPU, what this rank brings is in its own core's caches alone, as what it has just
    // computed.
    if (!device_.gpu) std::memset(mine_.data(), 0, mine_.bytes());
    enqueue_meeting();
    const int in_a_row = device_.gpu ? kInARowOnGpu : 1;
    const double seconds = device_.seconds(1, stream_, [&] {
      backend_.replay(key, stream_, communicator_.size() > 1, [&] {
        for (int i = 0; i < in_a_row; ++i) collective.run();
      });
    });
    return seconds / in_a_row;
  }
  // All ranks are here at about the same time.
  void meet() {
    enqueue_meeting();
    backend_.synchronize(stream_);
  }

 private:
  TensorView mine(int64_t rows) const { return mine_.view(DType::f32, {rows, hidden_}); }
  void enqueue_meeting() {
    communicator_.all_reduce_sum(meeting_.view(DType::f32, {1, 1}), stream_);
  }

  BenchDevice& device_;
  Communicator& communicator_;
  Backend& backend_;
  ForgetReplayed forget_replayed_{backend_};
  Stream stream_;
  int64_t hidden_;
  int64_t most_floats_;
  Buffer mine_, all_, meeting_;
};

// A plan that rank 0 publishes and every other rank answers.
struct RoundTrip {
  int64_t sequences = 0;
  std::vector<uint8_t> plan;
  std::vector<double> samples;
};

std::vector<RoundTrip> round_trips() {
  std::vector<RoundTrip> trips;
  for (const int64_t sequences : kPlanSequences) {
    StepPlan plan;
    plan.work.resize(sequences, {.decode = 1, .num_draft_tokens = kPlanDraftTokens});
    trips.push_back({.sequences = sequences, .plan = plan.serialise()});
  }
  return trips;
}

void go_and_return(const RoundTrip& trip, ControlServer* server, ControlClient* client) {
  if (server != nullptr) {
    server->publish(trip.plan);
    server->gather(kReplyTimeout);
  } else if (client->receive(kSpin)) {
    client->send({});
  }
}

void print(const CommBenchOptions& options, const BenchDevice& device, int ranks,
           const std::optional<CoreLink>& link, const std::vector<Collective>& collectives,
           const std::vector<RoundTrip>& trips) {
  std::printf("ranks %d, %s, rows of %lld floats", ranks, device.name.c_str(),
              static_cast<long long>(options.hidden));
  if (link) {
    std::printf(", from core to core: a line in %.0f ns, reads %.1f GB/s, writes %.1f GB/s",
                1e9 * link->line_seconds, link->read_rate / 1e9, link->write_rate / 1e9);
  }
  std::printf(
      "\n\n| exchange | rows | bytes of a rank | us | bound, us | bound / measured |\n"
      "| --- | --- | --- | --- | --- | --- |\n");
  for (const Collective& collective : collectives) {
    const double seconds = median(collective.samples);
    std::printf("| %s | %lld | %.0f | %.1f |", collective.name.c_str(),
                static_cast<long long>(collective.rows), collective.bytes, 1e6 * seconds);
    if (collective.bound) {
      std::printf(" %.1f | %.0f %% |\n", 1e6 * *collective.bound,
                  100 * *collective.bound / seconds);
    } else {
      std::printf(" | |\n");
    }
  }
  std::printf("\n| a plan and its answers: sequences | bytes | us |\n| --- | --- | --- |\n");
  for (const RoundTrip& trip : trips) {
    std::printf("| %lld | %zu | %.1f |\n", static_cast<long long>(trip.sequences), trip.plan.size(),
                1e6 * median(trip.samples));
  }
}

void write_json(const CommBenchOptions& options, const BenchDevice& device, int ranks,
                const std::optional<CoreLink>& link, const std::vector<Collective>& collectives,
                const std::vector<RoundTrip>& trips) {
  std::vector<Measurement> all;
  for (const Collective& collective : collectives) {
    Measurement m = {.name = "comm/" + collective.name + "/rows:" + std::to_string(collective.rows),
                     .seconds = median(collective.samples),
                     .samples = static_cast<int64_t>(collective.samples.size()),
                     .counters = {{"bytes", collective.bytes}}};
    if (collective.bound) m.counters["bound_us"] = 1e6 * *collective.bound;
    all.push_back(std::move(m));
  }
  for (const RoundTrip& trip : trips) {
    all.push_back({.name = "comm/plan_round_trip/sequences:" + std::to_string(trip.sequences),
                   .seconds = median(trip.samples),
                   .samples = static_cast<int64_t>(trip.samples.size()),
                   .counters = {{"bytes", static_cast<double>(trip.plan.size())}}});
  }
  std::map<std::string, std::string> context = {{"device", device.name},
                                                {"ranks", std::to_string(ranks)},
                                                {"hidden", std::to_string(options.hidden)}};
  if (link) {
    all.insert(all.begin(), {.name = "comm/line", .seconds = link->line_seconds, .samples = 1});
    context["core_read_bytes_per_second"] = std::to_string(link->read_rate);
    context["core_write_bytes_per_second"] = std::to_string(link->write_rate);
  }
  write_bench_report(*options.json, context, all);
}

}  // namespace

void run_comm_bench(const CommBenchOptions& options, BenchDevice& device, bool one_host,
                    Communicator& communicator, ControlServer* server, ControlClient* client) {
  CHECK(communicator.size() >= 2);
  CHECK((server != nullptr) == (communicator.rank() == 0));
  if (server != nullptr) check_bench_report(options.json);
  set_float_environment();
  const std::optional<CoreLink> link =
      one_host && !device.gpu ? measure_core_link(communicator) : std::nullopt;
  Collectives on_this_rank(options, device, communicator);
  std::vector<Collective> collectives = on_this_rank.list(options.rows, link);
  std::vector<RoundTrip> trips = round_trips();
  const int warm_up = device.gpu ? kWarmUpOnGpu : 0;
  for (int round = -warm_up; round < options.repeats; ++round) {
    for (size_t i = 0; i < collectives.size(); ++i) {
      const double seconds = on_this_rank.time(collectives[i], i);
      if (round >= 0) collectives[i].samples.push_back(seconds);
    }
    for (RoundTrip& trip : trips) {
      on_this_rank.meet();
      const double seconds = seconds_of([&] { go_and_return(trip, server, client); });
      if (round >= 0) trip.samples.push_back(seconds);
    }
  }
  if (client != nullptr) {
    // Rank 0 may still wait for others, and takes a closed connection for a lost rank.
    CHECK(!client->receive(kSpin));
    return;
  }
  server->goodbye();
  print(options, device, communicator.size(), link, collectives, trips);
  if (options.json) write_json(options, device, communicator.size(), link, collectives, trips);
}

}  // namespace outrider
