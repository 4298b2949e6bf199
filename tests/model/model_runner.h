// Runs a Transformer by itself: rows in, logits out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "comm/self_communicator.h"
#include "comm/thread_communicator.h"
#include "core/float_environment.h"
#include "model/transformer.h"

namespace outrider {

struct Row {
  int32_t slot;
  int32_t position;
  int32_t token;
  bool wants_logits = true;
};

using Logits = std::vector<float>;  // one row

// One rank's model, its cache and the memory of its batches.
class ModelRunner {
 public:
  ModelRunner(const std::filesystem::path& directory, Communicator& communicator,
              int64_t max_rows = 128, int64_t num_slots = 4, int64_t max_positions = 0,
              std::unique_ptr<Backend> backend = make_cpu_backend())
      : ModelRunner(
            [&](Backend& to) {
              return Transformer(directory, to, communicator, max_rows, max_positions);
            },
            max_rows, num_slots, std::move(backend)) {}
  ModelRunner(const std::function<Transformer(Backend&)>& make_model, int64_t max_rows,
              int64_t num_slots, std::unique_ptr<Backend> backend)
      : backend_(std::move(backend)),
        stream_(backend_->make_stream()),
        model_(make_model(*backend_)),
        cache_(model_.make_kv_cache(num_slots * 96, num_slots)),
        max_rows_(max_rows),
        batch_(backend_->allocate(4 * max_rows * sizeof(int32_t))),
        logits_(backend_->allocate(max_rows * model_.shard().vocab.size() * sizeof(float))) {
    cache_.deal_pages(stream_);
  }

  const Transformer& model() const { return model_; }
  Transformer& model() { return model_; }

  // One pass. The logits of the rows that want them, over this rank's vocabulary. segment_ends: as
  // Batch has them.
  std::vector<Logits> forward(const std::vector<Row>& rows,
                              const std::vector<int64_t>& segment_ends = {}) {
    std::vector<int32_t> tokens, positions, slots, logit_rows;
    for (const Row& row : rows) {
      if (row.wants_logits) logit_rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(row.token);
      positions.push_back(row.position);
      slots.push_back(row.slot);
      CHECK(row.position < cache_.capacity(row.slot));
    }
    const Batch batch = {upload(0, tokens), upload(1, positions), upload(2, slots),
                         upload(3, logit_rows), segment_ends};
    const int64_t vocab = model_.shard().vocab.size();
    const auto wanted = static_cast<int64_t>(logit_rows.size());
    const TensorView view = logits_.view(DType::f32, {wanted, vocab});
    model_.forward(batch, cache_, view, stream_);
    std::vector<Logits> logits(wanted, Logits(vocab));
    for (int64_t i = 0; i < wanted; ++i) {
      backend_->copy_to_host(logits[i].data(), view.rows(i, i + 1), stream_);
    }
    backend_->synchronize(stream_);
    return logits;
  }

  // Feeds tokens at positions `begin`, `begin` + 1, … of a slot in passes of `chunk` rows.
  std::vector<Logits> feed(int32_t slot, const std::vector<int32_t>& tokens, int64_t chunk,
                           int32_t begin = 0) {
    std::vector<Logits> logits;
    const auto count = static_cast<int64_t>(tokens.size());
    for (int64_t first = 0; first < count; first += chunk) {
      std::vector<Row> rows;
      for (int64_t i = first; i < std::min(first + chunk, count); ++i) {
        rows.push_back({slot, static_cast<int32_t>(begin + i), tokens[i]});
      }
      for (Logits& row : forward(rows)) logits.push_back(std::move(row));
    }
    return logits;
  }

 private:
  TensorView upload(int column, const std::vector<int32_t>& values) {
    const TensorView view = batch_.view(DType::i32, {static_cast<int64_t>(values.size())},
                                        column * max_rows_ * sizeof(int32_t));
    backend_->copy_from_host(view, values.data(), stream_);
    return view;
  }

  std::unique_ptr<Backend> backend_;
  Stream stream_;
  Transformer model_;
  KvCache cache_;
  int64_t max_rows_;
  Buffer batch_;   // i32 [4, max_rows]
  Buffer logits_;  // f32 [max_rows, vocab of this rank]
};

// Calls body(runner) on `ranks` threads, each with its own runner, and joins what the ranks return
// (logits of the same rows, each over its own vocabulary) to rows over the whole vocabulary.
template <typename Body>
std::vector<Logits> run_ranks(const std::filesystem::path& directory, int ranks, Body body) {
  std::vector<std::vector<Logits>> parts(ranks);
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    set_float_environment();
    ModelRunner runner(directory, communicator);
    parts[communicator.rank()] = body(runner);
  });
  std::vector<Logits> whole = parts[0];
  for (int rank = 1; rank < ranks; ++rank) {
    CHECK(parts[rank].size() == whole.size());
    for (size_t row = 0; row < whole.size(); ++row) {
      whole[row].insert(whole[row].end(), parts[rank][row].begin(), parts[rank][row].end());
    }
  }
  return whole;
}

}  // namespace outrider
