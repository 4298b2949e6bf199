#include "bench/decode_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "bench/bandwidth.h"
#include "core/float_environment.h"
#include "model/transformer.h"
#include "spec/batch_builder.h"
#include "spec/drafter.h"
#include "spec/verifier.h"

namespace outrider {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxRows = kMaxDraftTokens + 1;
constexpr int64_t kRowCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// One rank's models and buffers, and the parts of a step to be timed.
class DecodeBench {
 public:
  DecodeBench(const DecodeBenchOptions& options, Communicator& communicator)
      : communicator_(communicator),
        backend_(make_cpu_backend()),
        context_(options.context),
        target_(options.model, *backend_, communicator, kMaxRows, options.context + kMaxRows),
        cache_(target_.make_kv_cache((options.context + kMaxRows) / kPageTokens + 1, 1)),
        rows_(*backend_, kMaxRows),
        vocab_(target_.config().vocab_size),
        logits_(backend_->allocate(sizeof(float) * kMaxRows * target_.shard().vocab.size())),
        draft_logits_(backend_->allocate(sizeof(float) * kMaxRows * vocab_)),
        partial_(backend_->allocate(sizeof(float) * kMaxRows * target_.config().hidden_size)),
        verifier_(*backend_, communicator, vocab_, target_.shard().vocab.begin,
                  target_.shard().vocab.size(), kMaxRows, 1) {
    if (options.draft) {
      drafter_.emplace(*options.draft, *backend_, context_ / kPageTokens + 1, 1, kMaxRows,
                       std::function<void(double)>());
      drafter_->cache().deal_pages(stream_);
    }
    cache_.deal_pages(stream_);
    std::mt19937 random(1);
    tokens_.resize(context_ + kMaxRows);
    for (int32_t& token : tokens_) token = static_cast<int32_t>(random() % vocab_);
    std::vector<float> noise(kMaxRows * vocab_);
    for (float& logit : noise) logit = static_cast<float>(random() % 1000) * 0.01f;
    backend_->copy_from_host(draft_logits_.view(DType::f32, {kMaxRows * vocab_}), noise.data(),
                             stream_);
    Staged<DraftRow> rows(*backend_, kMaxRows);
    for (int i = 0; i < kMaxRows; ++i) {
      rows.host()[i] = {.processors = {.mode = VerifyMode::rejection},
                        .key = {.seed = 1, .base = 1},
                        .offset = i,
                        .drafted = i};
    }
    rows.upload(0, kMaxRows, stream_);
    drafted_ = backend_->allocate(kMaxRows * sizeof(int32_t));
    q_ = backend_->allocate(kMaxRows * sizeof(RowDistribution));
    backend_->sample_drafts(draft_logits_.view(DType::f32, {kMaxRows, vocab_}), rows.device(),
                            kMaxRows, static_cast<int32_t*>(drafted_.data()),
                            static_cast<RowDistribution*>(q_.data()), stream_);
    backend_->synchronize(stream_);
    for (int64_t begin = 0; begin < context_; begin += kMaxRows) {
      forward(begin, std::min(context_, begin + kMaxRows));
    }
  }

  const Transformer& target() const { return target_; }
  Backend& backend() { return *backend_; }
  bool has_draft() const { return drafter_.has_value(); }

  void target_step(int64_t rows) { forward(context_, context_ + rows); }
  void verify(int64_t rows, VerifyMode mode) {
    const VerifyWork work{.num_drafted = static_cast<int>(rows - 1),
                          .drafted = static_cast<const int32_t*>(drafted_.data()),
                          .draft_logits = static_cast<const float*>(draft_logits_.data()),
                          .draft_stride = vocab_,
                          .draft_rows = static_cast<const RowDistribution*>(q_.data()),
                          .processors = {.mode = mode},
                          .key = {.seed = 1, .base = 1}};
    verifier_.prepare({&work, 1}, {}, logits(rows), false, 0, stream_);
    verifier_.enqueue(stream_);
    verifier_.finish(stream_);
  }
  void all_reduce(int64_t rows) {
    communicator_.all_reduce_sum(partial_.view(DType::f32, {rows, target_.config().hidden_size}),
                                 stream_);
  }
  // One drafted token on a warm cache.
  void draft_step() {
    const DraftContext context{.slot = 0, .tokens = std::span(tokens_).first(context_)};
    drafter_->begin_step();
    drafter_->prepare({&context, 1}, draft_logits_.view(DType::f32, {1, vocab_}), stream_);
    drafter_->enqueue(stream_);
    drafter_->truncate(0, context_ - 1);
  }
  // Milliseconds of one call, begun by all ranks together.
  double time_ms(const std::function<void()>& part) {
    all_reduce(1);
    const auto start = Clock::now();
    part();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }
  // Over all ranks.
  double sum(double value) {
    std::vector<double> all(communicator_.size());
    communicator_.all_gather(TensorView(&value, DType::f64, {1}),
                             TensorView(all.data(), DType::f64, {communicator_.size(), 1}),
                             stream_);
    double total = 0;
    for (double v : all) total += v;
    return total;
  }

 private:
  // Rows [begin, end) of the context; earlier ones are cached.
  void forward(int64_t begin, int64_t end) {
    rows_.begin_step();
    for (int64_t i = begin; i < end; ++i) rows_.add(0, tokens_[i], i, true);
    rows_.upload(stream_);
    target_.forward(rows_.batch(stream_), cache_, logits(end - begin), stream_);
  }
  TensorView logits(int64_t rows) {
    return logits_.view(DType::f32, {rows, target_.shard().vocab.size()});
  }

  Communicator& communicator_;
  std::unique_ptr<Backend> backend_;
  Stream stream_;
  int64_t context_;
  Transformer target_;
  KvCache cache_;
  BatchBuilder rows_;
  int64_t vocab_;
  Buffer logits_, draft_logits_, partial_;
  Buffer drafted_, q_;  // i32, RowDistribution [kMaxRows]
  Verifier verifier_;
  std::optional<ModelDrafter> drafter_;
  std::vector<int32_t> tokens_;
};

}  // namespace

void run_decode_bench(const DecodeBenchOptions& options, Communicator& communicator) {
  set_float_environment();
  DecodeBench bench(options, communicator);

  bench.all_reduce(1);
  const double bandwidth = bench.sum(measure_read_bandwidth());
  const double weights = bench.sum(static_cast<double>(bench.target().weight_bytes()));

  constexpr size_t kCounts = std::size(kRowCounts);
  struct Samples {
    std::vector<double> target, greedy, rejection, all_reduce;
  } samples[kCounts];
  std::vector<double> draft;
  for (int round = 0; round < options.repeats; ++round) {
    for (size_t i = 0; i < kCounts; ++i) {
      const int64_t rows = kRowCounts[i];
      samples[i].target.push_back(bench.time_ms([&] { bench.target_step(rows); }));
      samples[i].greedy.push_back(bench.time_ms([&] { bench.verify(rows, VerifyMode::greedy); }));
      samples[i].rejection.push_back(
          bench.time_ms([&] { bench.verify(rows, VerifyMode::rejection); }));
      samples[i].all_reduce.push_back(bench.time_ms([&] { bench.all_reduce(rows); }));
    }
    if (bench.has_draft()) {
      bench.draft_step();  // in the first round, the whole context
      draft.push_back(bench.time_ms([&] { bench.draft_step(); }));
    }
  }
  if (communicator.rank() != 0) return;

  const double one = median(samples[0].target);
  std::printf("ranks %d, %s, context %lld tokens, weights %.1f MB, machine reads %.1f GB/s\n\n",
              communicator.size(), bench.backend().description().c_str(),
              static_cast<long long>(options.context), weights / 1e6, bandwidth / 1e9);
  std::printf(
      "| rows | target step, ms | to one row | GB/s | of the machine | verify greedy, ms | "
      "verify rejection, ms | all-reduce, us |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (size_t i = 0; i < kCounts; ++i) {
    const double ms = median(samples[i].target);
    const double rate = weights / (ms * 1e-3);
    std::printf("| %lld | %.3f | %.3f | %.1f | %.1f %% | %.3f | %.3f | %.1f |\n",
                static_cast<long long>(kRowCounts[i]), ms, ms / one, rate / 1e9,
                100 * rate / bandwidth, median(samples[i].greedy), median(samples[i].rejection),
                1e3 * median(samples[i].all_reduce));
  }
  if (!draft.empty()) {
    std::printf("\ndraft step %.3f ms, c = t_draft / t_target = %.3f\n", median(draft),
                median(draft) / one);
  }
}

}  // namespace outrider
