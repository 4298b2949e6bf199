#include "spec/step_cost.h"

#include <algorithm>

#include "kernels/verify_types.h"
#include "model/kv_cache.h"
#include "model/weights.h"
#include "spec/logit_editor.h"
#include "spec/verifier.h"

namespace outrider {

namespace {

constexpr int64_t kFloat = 4, kBf16 = 2;  // bytes

// Estimates: the context of CUDA with its kernels; and NCCL's buffers, graphs, allocation in large
// pieces.
constexpr int64_t kContextBytes = int64_t{512} << 20;
constexpr int64_t kReservedBytes = int64_t{512} << 20;

// Weights on their way to the device: backend/cuda/cuda_backend.cc, two pieces.
constexpr int64_t kLoadingBytes = int64_t{2} * (int64_t{32} << 20);

// `each` rows in each sequence, all with logits, as a replayed pass pads them.
PassShape replayed(const StepShape& shape, int64_t each) {
  const int64_t rows = shape.sequences * each;
  PassShape pass;
  pass.rows = {shape.sequences, each, shape.context, cuda_padded_rows(rows) - rows};
  pass.num_logits = pass.rows.rows();
  pass.max_positions = shape.max_positions;
  pass.numerics = shape.numerics;
  return pass;
}

PassCost pass_with_tokens(const ModelConfig& config, const Shard& shard, const PassShape& pass) {
  PassCost cost = pass_cost(config, shard, pass);
  cost.operations += copy_tokens_cost(pass.rows.rows());
  return cost;
}

PassCost verify_cost(const Shard& shard, const StepShape& shape, int64_t rows) {
  PassCost cost;
  cost.operations += verify_summary_cost(rows, 0, shard.vocab.size());
  cost.exchanges += all_gather_cost(shard.size, SummaryMessage::bytes(rows, 0));
  cost.operations += combine_and_accept_cost();
  if (!shape.sampled) return cost;
  if (shard.size == 1) {
    cost.operations += race_and_commit_cost(shape.sequences, shard.vocab.size());
    return cost;
  }
  cost.operations += race_step_cost(shape.sequences, shard.vocab.size());
  cost.exchanges += all_gather_cost(shard.size, rows * sizeof(RaceResult));  // a place for each row
  cost.operations += commit_step_cost();
  return cost;
}

}  // namespace

StepCost step_cost(const ModelConfig& target, const Shard& shard, const ModelConfig* draft,
                   const StepShape& shape, const DraftHeadConfig* head) {
  StepCost cost;
  const PassShape pass = replayed(shape, shape.num_draft_tokens + 1);
  cost.target = pass_with_tokens(target, shard, pass);
  cost.verify = verify_cost(shard, shape, pass.num_logits);
  PassShape round = replayed(shape, 1);
  if (head != nullptr) {
    cost.draft = draft_head_cost(*head, round.num_logits, shape.numerics);
    cost.draft.operations += copy_tokens_cost(round.num_logits);
    const bool takes_aux = !head->aux_layers.empty();
    if (takes_aux) {  // are kept, beside the final ones
      for (size_t i = 0; i <= head->aux_layers.size(); ++i) {
        cost.target.operations += gather_rows_cost(pass.num_logits, head->hidden_size);
      }
    }
    if (shape.num_draft_tokens > 0) {  // once a step
      cost.target.operations += gather_rows_cost(round.num_logits, head->hidden_size);
      if (takes_aux) {
        cost.target.operations += gather_rows_cost(round.num_logits, head->aux_width());
        cost.target += aux_projection_cost(*head, round.num_logits, shape.numerics);
      }
    }
  } else if (draft != nullptr) {
    round.max_positions = draft->max_position_embeddings;
    cost.draft = pass_with_tokens(*draft, Shard::of(*draft, 0, 1), round);
  } else {
    return cost;
  }
  cost.draft.operations += sample_drafts_cost(round.num_logits, target.vocab_size,
                                              shape.sampled ? shape.sequences : 0, !shape.sampled);
  return cost;
}

MemoryCost memory_cost(const ModelConfig& target, const Shard& shard, const ModelConfig* draft,
                       const ServerShape& server, const DraftHeadConfig* head) {
  MemoryCost cost;
  cost.context = kContextBytes;
  cost.reserved = kReservedBytes;
  cost.weights = cuda_weight_bytes(target, shard);
  cost.page_bytes = KvCache::page_bytes(target.num_layers, shard.attention);
  int64_t attention =
      cuda_attention_scratch_bytes(server.max_rows, server.max_positions, shard.attention);
  // Of the products that are activated, the largest.
  int64_t activation = 0;
  const auto count_activation = [&](int64_t rows, int64_t n) {
    activation = std::max(activation, cuda_activation_scratch_bytes(rows, n, server.numerics));
  };
  count_activation(server.max_rows, target.num_ffn_in() * shard.intermediate.size());
  cost.workspace =
      transformer_workspace_bytes(target, shard, server.max_rows, server.max_positions);
  if (draft != nullptr) {
    const Shard whole = Shard::of(*draft, 0, 1);
    const int64_t positions = draft->max_position_embeddings;
    cost.draft_weights = cuda_weight_bytes(*draft, whole);
    cost.page_bytes += KvCache::page_bytes(draft->num_layers, whole.attention);
    cost.workspace += transformer_workspace_bytes(*draft, whole, server.max_rows, positions);
    count_activation(server.max_rows, draft->num_ffn_in() * draft->intermediate_size);
    attention = std::max(attention,
                         cuda_attention_scratch_bytes(server.max_rows, positions, whole.attention));
  }
  if (head != nullptr) {
    const int64_t rows = cuda_padded_rows(server.max_sequences);
    // Of each sequence and of a round; with auxiliary layers, of a pass of the target, too, and
    // what these add to a round.
    const int64_t width = head->hidden_size + head->aux_width();
    int64_t states = (server.max_sequences + rows) * width * kBf16;
    if (!head->aux_layers.empty()) {
      states += server.max_rows * width * kBf16 + rows * head->hidden_size * kFloat;
    }
    count_activation(rows, num_inputs(Activation::swiglu) * head->intermediate_size);
    cost.draft_weights += cuda_weight_bytes(*head);
    cost.workspace += draft_head_workspace_bytes(*head, rows) + states;
  }
  // Of a round of drafts, and what is kept of all of them: SpeculativeStep.
  const int64_t round_rows = cuda_padded_rows(server.max_sequences);
  const int64_t draft_rows = round_rows + server.max_sequences * kMaxDraftTokens;
  const int64_t summary_rows = 2 * server.max_rows;
  cost.workspace += activation + attention + kLoadingBytes;
  cost.workspace +=
      sum_scratch_bytes(shard.size, server.max_rows * target.hidden_size, server.numerics);
  cost.workspace += std::max(cuda_verify_scratch_bytes(summary_rows, shard.vocab.size()),
                             cuda_verify_scratch_bytes(round_rows, target.vocab_size));
  cost.workspace += cuda_verify_arrivals_bytes(std::max(summary_rows, round_rows));
  if (server.numerics == Numerics::fast) {  // bf16 weights in cuBLASLt's order as well
    cost.workspace += kFastLinearWorkspaceBytes;
    cost.weights += weight_bytes(target, shard).held;
    if (draft != nullptr) cost.draft_weights += table_bytes(*draft, Shard::of(*draft, 0, 1));
    if (head != nullptr) cost.draft_weights += head->vocab_size * head->hidden_size * kBf16;
  }
  cost.workspace += kFloat * (draft_rows * target.vocab_size +
                              2 * server.max_rows * shard.vocab.size());  // logits
  cost.workspace += LogitEditor::bytes(target.vocab_size, server.max_sequences,
                                       max_listed_tokens(target.eos_token_ids.size()),
                                       std::max(server.max_rows, round_rows));
  const int num_messages = shard.size > 1 ? 1 + shard.size : 1;  // what is sent, and what comes
  cost.workspace +=
      num_messages * SummaryMessage::bytes(summary_rows, cuda_padded_rows(summary_rows));
  if (shard.size > 1) {  // rows that are gathered
    const int64_t largest_shard = split_range(target.vocab_size, shard.size - 1, shard.size).size();
    cost.workspace +=
        kFloat * kGatheredRows * ((1 + shard.size) * largest_shard + target.vocab_size);
  }
  return cost;
}

int64_t fixed_bytes(const MemoryCost& cost) {
  return cost.context + cost.reserved + cost.weights + cost.draft_weights + cost.workspace;
}

int64_t kv_tokens_that_fit(const MemoryCost& cost, int64_t memory_bytes) {
  const int64_t left = memory_bytes - fixed_bytes(cost);
  return left < 0 ? left : left / cost.page_bytes * kPageTokens;
}

}  // namespace outrider
