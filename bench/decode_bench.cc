#include "bench/decode_bench.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "bench/bandwidth.h"
#include "bench/bench_report.h"
#include "core/float_environment.h"
#include "model/pass_cost.h"
#include "model/random_weights.h"
#include "model/transformer.h"
#include "spec/batch_builder.h"
#include "spec/drafter.h"
#include "spec/head_drafter.h"
#include "spec/verifier.h"

namespace outrider {

namespace {

constexpr int64_t kMaxRows = kMaxDraftTokens + 1;
constexpr int kInARowOnGpu = 8;  // passes of a sample: the host is not waited for between them
constexpr uint64_t kTargetKey = 1 << 20;

Transformer load_target(const DecodeBenchOptions& options, Backend& backend,
                        Communicator& communicator) {
  const int64_t positions = options.context + kMaxRows;
  if (std::filesystem::is_directory(options.model)) {
    return Transformer(options.model, backend, communicator, kMaxRows, positions);
  }
  const auto make_weights = [](const ModelConfig& config, const Shard& shard, Backend& to) {
    return random_weights(config, shard, to, 1);
  };
  return Transformer(ModelConfig::load_shape(options.model), make_weights, backend, communicator,
                     kMaxRows, positions);
}

// One rank's models and buffers, and the parts of a step to be timed.
class DecodeBench {
 public:
  DecodeBench(const DecodeBenchOptions& options, BenchDevice& device, Communicator& communicator)
      : device_(device),
        communicator_(communicator),
        backend_(*device.backend),
        stream_(backend_.make_stream()),
        context_(options.context),
        target_(load_target(options, backend_, communicator)),
        cache_(target_.make_kv_cache((options.context + kMaxRows) / kPageTokens + 1, 1)),
        rows_(backend_, kMaxRows),
        vocab_(target_.config().vocab_size),
        logits_(backend_.allocate(sizeof(float) * kMaxRows * target_.shard().vocab.size())),
        draft_logits_(backend_.allocate(sizeof(float) * kMaxRows * vocab_)),
        partial_(backend_.allocate(sizeof(float) * kMaxRows * target_.config().hidden_size)),
        verifier_(backend_, communicator, vocab_, target_.shard().vocab.begin,
                  target_.shard().vocab.size(), kMaxRows, 1) {
    if (options.draft) {
      auto model =
          std::make_unique<ModelDrafter>(*options.draft, backend_, context_ / kPageTokens + 1, 1,
                                         kMaxRows, std::function<void(double)>());
      model->cache().deal_pages(stream_);
      drafter_ = std::move(model);
    } else if (options.draft_head) {
      auto head = std::make_unique<HeadDrafter>(*options.draft_head, options.model, backend_,
                                                communicator, 1);
      target_.keep_states(head->head().config().aux_layers);
      drafter_ = std::move(head);
    }
    cache_.deal_pages(stream_);
    std::mt19937 random(1);
    tokens_.resize(context_ + kMaxRows);
    for (int32_t& token : tokens_) token = static_cast<int32_t>(random() % vocab_);
    std::vector<float> noise(kMaxRows * vocab_);
    for (float& logit : noise) logit = static_cast<float>(random() % 1000) * 0.01f;
    const Buffer drawn_from = backend_.allocate(sizeof(float) * noise.size());
    const TensorView drawn_logits = drawn_from.view(DType::f32, {kMaxRows, vocab_});
    backend_.copy_from_host(drawn_logits, noise.data(), stream_);
    Staged<DraftRow> rows(backend_, kMaxRows);
    for (int i = 0; i < kMaxRows; ++i) {
      rows.host()[i] = {.processors = {.mode = VerifyMode::rejection},
                        .key = {.seed = 1, .base = 1},
                        .offset = i,
                        .drafted = i};
    }
    rows.upload(0, kMaxRows, stream_);
    drafted_ = backend_.allocate(kMaxRows * sizeof(int32_t));
    q_ = backend_.allocate(kMaxRows * sizeof(RowDistribution));
    backend_.reserve_verification(kMaxRows, vocab_);
    backend_.sample_drafts(drawn_logits, rows.device(), kMaxRows, /*all_greedy=*/false,
                           static_cast<int32_t*>(drafted_.data()),
                           static_cast<RowDistribution*>(q_.data()),
                           static_cast<float*>(draft_logits_.data()), stream_);
    backend_.synchronize(stream_);
    for (int64_t begin = 0; begin < context_; begin += kMaxRows) {
      gather(begin, std::min(context_, begin + kMaxRows));
      forward();
      backend_.synchronize(stream_);
    }
  }

  DecodeBench(const DecodeBench&) = delete;
  DecodeBench& operator=(const DecodeBench&) = delete;

  const Transformer& target() const { return target_; }
  bool has_draft() const { return drafter_ != nullptr; }

  // Each returns seconds of one, begun by all ranks together.

  // replayed: as one graph, where the backend has such.
  double target_step(int64_t rows, bool replayed) {
    gather(context_, context_ + rows);
    return time(replayed ? kTargetKey + rows : 0, several_ranks(), [&] { forward(); });
  }
  double verify(int64_t rows, VerifyMode mode) {
    const VerifyWork work{.num_drafted = static_cast<int>(rows - 1),
                          .drafted = static_cast<const int32_t*>(drafted_.data()),
                          .draft_logits = static_cast<const float*>(draft_logits_.data()),
                          .draft_rows = static_cast<const RowDistribution*>(q_.data()),
                          .processors = {.mode = mode},
                          .key = {.seed = 1, .base = 1}};
    const uint64_t key = verifier_.prepare({&work, 1}, {}, logits(rows), 0, 0, stream_);
    const double seconds = time(key, several_ranks(), [&] { verifier_.enqueue(stream_); });
    verifier_.finish(stream_);
    return seconds;
  }
  double all_reduce(int64_t rows) {
    return time(0, several_ranks(), [&] { enqueue_sum(rows); });
  }
  // One drafted token, on a warm cache where there is one; a head has made of the target's states
  // what it makes of them once a step.
  double draft_step() {
    const DraftContext context{.slot = 0, .tokens = std::span(tokens_).first(context_)};
    drafter_->begin_step();
    drafter_->take_state(0, context_, target_.states(1, 1), stream_);
    const uint64_t key =
        drafter_->prepare({&context, 1}, draft_logits_.view(DType::f32, {1, vocab_}), stream_);
    const double seconds = time(key, /*collective=*/false, [&] { drafter_->enqueue(stream_); });
    drafter_->truncate(0, context_ - 1);
    return seconds;
  }
  // Over all ranks.
  double sum(double value) {
    const int ranks = communicator_.size();
    const Buffer mine = backend_.allocate(sizeof value);
    const Buffer all = backend_.allocate(ranks * sizeof value);
    std::vector<double> values(ranks);
    backend_.copy_from_host(mine.view(DType::f64, {1}), &value, stream_);
    communicator_.all_gather(mine.view(DType::f64, {1}), all.view(DType::f64, {ranks, 1}), stream_);
    backend_.copy_to_host(values.data(), all.view(DType::f64, {ranks}), stream_);
    backend_.synchronize(stream_);
    double total = 0;
    for (double v : values) total += v;
    return total;
  }
  // What the pass of `rows` rows, padded as it is, asks of a GPU.
  OperationCost cost(int64_t rows) {
    gather(context_, context_ + rows);
    const PassShape shape = {
        .rows = {.each = rows, .context = context_, .padding = rows_.num_rows() - rows},
        .num_logits = rows_.num_logit_rows(),
        .max_positions = context_ + kMaxRows};
    OperationCost cost = pass_cost(target_.config(), target_.shard(), shape).operations;
    cost += copy_tokens_cost(rows_.num_rows());
    return cost;
  }

 private:
  // Rows [begin, end) of the context, with logits, on their way; earlier ones are cached.
  void gather(int64_t begin, int64_t end) {
    backend_.synchronize(stream_);
    rows_.begin_step();
    for (int64_t i = begin; i < end; ++i) rows_.add(0, tokens_[i], i, true);
    rows_.pad();
    rows_.upload(stream_);
  }
  void forward() {
    target_.forward(rows_.batch(stream_), cache_, logits(rows_.num_logit_rows()), stream_);
  }
  void enqueue_sum(int64_t rows) {
    communicator_.all_reduce_sum(partial_.view(DType::f32, {rows, target_.config().hidden_size}),
                                 stream_);
  }
  TensorView logits(int64_t rows) {
    return logits_.view(DType::f32, {rows, target_.shard().vocab.size()});
  }
  bool several_ranks() const { return communicator_.size() > 1; }
  // key: of what is replayed; 0: it is enqueued each time.
  double time(uint64_t key, bool collective, const std::function<void()>& enqueue) {
    enqueue_sum(1);
    return device_.seconds(device_.gpu ? kInARowOnGpu : 1, stream_, [&] {
      if (key == 0) {
        enqueue();
      } else {
        backend_.replay(key, stream_, collective, enqueue);
      }
    });
  }

  BenchDevice& device_;
  Communicator& communicator_;
  Backend& backend_;
  ForgetReplayed forget_replayed_{backend_};
  Stream stream_;
  int64_t context_;
  Transformer target_;
  KvCache cache_;
  BatchBuilder rows_;
  int64_t vocab_;
  Buffer logits_, draft_logits_, partial_;
  Buffer drafted_, q_;  // i32, RowDistribution [kMaxRows]
  Verifier verifier_;
  std::unique_ptr<LogitDrafter> drafter_;
  std::vector<int32_t> tokens_;
};

// Seconds, a round each.
struct RowSamples {
  int64_t rows = 0;
  std::vector<double> target, unreplayed, greedy, rejection, coupled, all_reduce;

  void add(DecodeBench& bench, bool gpu) {
    target.push_back(bench.target_step(rows, true));
    if (gpu) unreplayed.push_back(bench.target_step(rows, false));
    greedy.push_back(bench.verify(rows, VerifyMode::greedy));
    rejection.push_back(bench.verify(rows, VerifyMode::rejection));
    coupled.push_back(bench.verify(rows, VerifyMode::coupled));
    all_reduce.push_back(bench.all_reduce(rows));
  }
};

// a / b of each round, in the median: what memory delivers may change from one to the next.
double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[b.size() == 1 ? 0 : i]);
  return median(ratios);
}

// Steps that draft K tokens and verify them, greedy, by round.
struct Cycle {
  int64_t num_drafted = 0;
  std::vector<double> seconds;
  // If the K + 1 rows took what one takes, as (1 - α^(K+1)) / (1 - α) / (1 + K c) has it.
  std::vector<double> ideal;
};

struct DecodeResults {
  std::vector<double> bandwidth;  // bytes a second of all ranks' memory; of a GPU's, once
  double weights = 0;             // bytes read by a pass, of all ranks
  std::vector<RowSamples> rows;
  std::vector<double> draft;

  const RowSamples* single_row() const {
    const auto at = std::ranges::find(rows, 1, &RowSamples::rows);
    return at == rows.end() ? nullptr : &*at;
  }
  // Of each K whose K + 1 rows were measured, where one row was, too, and there is a drafter.
  std::vector<Cycle> cycles() const {
    const RowSamples* const single = single_row();
    std::vector<Cycle> cycles;
    if (single == nullptr || draft.empty()) return cycles;
    for (const RowSamples& verified : rows) {
      if (verified.rows == 1) continue;
      Cycle& cycle = cycles.emplace_back(Cycle{.num_drafted = verified.rows - 1});
      for (size_t i = 0; i < draft.size(); ++i) {
        const double drafting = static_cast<double>(cycle.num_drafted) * draft[i];
        cycle.seconds.push_back(drafting + verified.target[i] + verified.greedy[i]);
        cycle.ideal.push_back(drafting + single->target[i] + single->greedy[i]);
      }
    }
    return cycles;
  }

  // Bytes of weights a second, as a share of what memory delivered in the same round.
  double of_memory(const RowSamples& samples) const {
    std::vector<double> rates;
    for (const double seconds : samples.target) rates.push_back(weights / seconds);
    return median_ratio(rates, bandwidth);
  }
};

DecodeResults measure(const DecodeBenchOptions& options, BenchDevice& device, DecodeBench& bench,
                      double gpu_bandwidth) {
  DecodeResults results;
  if (device.gpu) results.bandwidth = {bench.sum(gpu_bandwidth)};
  std::optional<ReadBandwidth> memory;
  if (!device.gpu) memory.emplace();
  results.weights = bench.sum(static_cast<double>(bench.target().weight_bytes()));
  for (int64_t rows : options.rows) results.rows.push_back({.rows = rows});
  // A GPU's first rounds record graphs.
  const int warm_up = device.gpu ? 2 : 0;
  for (int round = -warm_up; round < options.repeats; ++round) {
    if (memory) {
      bench.all_reduce(1);  // together
      results.bandwidth.push_back(bench.sum(memory->pass()));
    }
    for (RowSamples& samples : results.rows) {
      samples.add(bench, device.gpu);
      if (round < 0) samples = {.rows = samples.rows};
    }
    if (!bench.has_draft()) continue;
    bench.draft_step();  // in the first round, the whole context
    const double draft = bench.draft_step();
    if (round >= 0) results.draft.push_back(draft);
  }
  return results;
}

void print(const DecodeBenchOptions& options, const BenchDevice& device, int ranks,
           const DecodeResults& results) {
  std::printf("ranks %d, %s, context %lld tokens, weights %.1f MB, machine %s %.1f GB/s\n\n", ranks,
              device.backend->description().c_str(), static_cast<long long>(options.context),
              results.weights / 1e6, device.gpu ? "copies" : "reads",
              median(results.bandwidth) / 1e9);
  std::printf(
      "| rows | target step, ms | to the first | GB/s | of the machine | verify greedy, ms | "
      "verify rejection, ms | verify coupled, ms | all-reduce, us |%s\n",
      device.gpu ? " without graphs, ms |" : "");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- |%s\n",
              device.gpu ? " --- |" : "");
  const RowSamples& first = results.rows[0];
  for (const RowSamples& samples : results.rows) {
    const double seconds = median(samples.target);
    std::printf("| %lld | %.3f | %.3f | %.1f | %.1f %% | %.3f | %.3f | %.3f | %.1f |",
                static_cast<long long>(samples.rows), 1e3 * seconds,
                median_ratio(samples.target, first.target), results.weights / seconds / 1e9,
                100 * results.of_memory(samples), 1e3 * median(samples.greedy),
                1e3 * median(samples.rejection), 1e3 * median(samples.coupled),
                1e6 * median(samples.all_reduce));
    if (device.gpu) std::printf(" %.3f |", 1e3 * median(samples.unreplayed));
    std::printf("\n");
  }
  if (results.draft.empty()) return;
  std::printf("\ndraft step %.3f ms", 1e3 * median(results.draft));
  if (const RowSamples* const single = results.single_row()) {
    std::printf(", c = t_draft / t_target = %.3f", median_ratio(results.draft, single->target));
  }
  std::printf("\n");
  const std::vector<Cycle> cycles = results.cycles();
  if (cycles.empty()) return;
  std::printf(
      "\n| K | K drafts and K + 1 rows verified, ms | of the ideal |\n| --- | --- | --- |\n");
  for (const Cycle& cycle : cycles) {
    std::printf("| %lld | %.3f | %.3f |\n", static_cast<long long>(cycle.num_drafted),
                1e3 * median(cycle.seconds), median_ratio(cycle.ideal, cycle.seconds));
  }
}

void write_json(const DecodeBenchOptions& options, const BenchDevice& device, int ranks,
                const DecodeResults& results, DecodeBench& bench) {
  std::vector<Measurement> all;
  const auto add = [&](const std::string& name, const std::vector<double>& samples,
                       std::map<std::string, double> counters) {
    if (samples.empty()) return;
    all.push_back({name, median(samples), static_cast<int64_t>(samples.size()), counters});
  };
  for (const RowSamples& samples : results.rows) {
    const std::string rows = "/rows:" + std::to_string(samples.rows);
    const double rate = results.weights / median(samples.target);
    std::map<std::string, double> counters = {
        {"bytes_per_second", rate},
        {"of_memory", results.of_memory(samples)},
        {"to_first", median_ratio(samples.target, results.rows[0].target)}};
    const OperationCost cost = bench.cost(samples.rows);
    counters["flops"] = static_cast<double>(cost.flops);
    if (device.gpu) counters["launches"] = static_cast<double>(cost.launches);
    add("decode/target" + rows, samples.target, counters);
    add("decode/target_without_graphs" + rows, samples.unreplayed, {});
    add("decode/verify_greedy" + rows, samples.greedy, {});
    add("decode/verify_rejection" + rows, samples.rejection, {});
    add("decode/verify_coupled" + rows, samples.coupled, {});
    add("decode/all_reduce" + rows, samples.all_reduce, {});
  }
  std::map<std::string, double> of_draft;
  if (const RowSamples* const single = results.single_row(); single && !results.draft.empty()) {
    of_draft["draft_cost"] = median_ratio(results.draft, single->target);
  }
  add("decode/draft", results.draft, of_draft);
  for (const Cycle& cycle : results.cycles()) {
    add("decode/cycle/k:" + std::to_string(cycle.num_drafted), cycle.seconds,
        {{"of_ideal", median_ratio(cycle.ideal, cycle.seconds)}});
  }
  write_bench_report(*options.json,
                     {{"model", options.model.filename().string()},
                      {"device", device.name},
                      {"backend", device.backend->description()},
                      {"ranks", std::to_string(ranks)},
                      {"context_tokens", std::to_string(options.context)},
                      {"memory_bytes_per_second", std::to_string(median(results.bandwidth))}},
                     all);
}

}  // namespace

void run_decode_bench(const DecodeBenchOptions& options, BenchDevice& device,
                      Communicator& communicator) {
  if (communicator.rank() == 0) check_bench_report(options.json);
  set_float_environment();
  // First: its memory is needed again.
  const double gpu_bandwidth =
      device.gpu ? measure_copy_bandwidth(device, options.copy_bytes, options.repeats) : 0;
  DecodeBench bench(options, device, communicator);
  const DecodeResults results = measure(options, device, bench, gpu_bandwidth);
  if (communicator.rank() != 0) return;
  print(options, device, communicator.size(), results);
  if (options.json) write_json(options, device, communicator.size(), results, bench);
}

}  // namespace outrider
