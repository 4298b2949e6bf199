#include "bench/op_bench.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "bench/bandwidth.h"
#include "bench/bench_report.h"
#include "bench/op_cases.h"
#include "core/buffer.h"
#include "core/error.h"
#include "core/float_environment.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/distribution.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/sample.h"

namespace outrider {
namespace {

using cpu::Isa;
using Clock = std::chrono::steady_clock;

constexpr double kMinSeconds = 2e-3;  // of a sample: short cases run several times in one

// SmolLM2's, and as many rows of logits as a step with four drafted tokens has.
constexpr int64_t kVocab = 49152, kLogitRows = 5;
constexpr Processors kSampled = {.mode = VerifyMode::rejection};

// Where verification and drawing put what they find.
struct Found {
  ShardSummary summaries[kLogitRows];
  Candidate candidates[kLogitRows][kCandidates];
  RowDistribution distribution;
  int32_t token;
  std::vector<float> logits = std::vector<float>(kVocab);
};

// What a thread works on. Weights are read on from where the last case stopped, so that they come
// from memory and not from a cache.
struct Thread {
  Buffer weights = allocate_host(kBandwidthBytes);
  size_t offset = 0;
  std::vector<bf16> x = std::vector<bf16>(size_t{1} << 22, bf16{0x3f80});
  std::vector<bf16> y_bf16 = std::vector<bf16>(size_t{1} << 22);
  std::vector<float> x_f32 = std::vector<float>(size_t{1} << 22, 0.5f);
  std::vector<float> y = std::vector<float>(size_t{1} << 22);
  std::vector<float> addend = std::vector<float>(size_t{1} << 22);  // zeros: x_f32 stays
  std::vector<float> ones = std::vector<float>(size_t{1} << 20, 1.0f);
  std::vector<bf16> pages = std::vector<bf16>(size_t{1} << 22);
  std::vector<int32_t> tokens, positions, sequences, page_tables;
  std::vector<float> normal = std::vector<float>(kLogitRows * kVocab);  // of deviation 1
  RowDistribution p, q;                                                 // of its first two rows
  Found found;

  Thread() {
    auto* words = static_cast<uint32_t*>(weights.data());
    for (size_t i = 0; i < kBandwidthBytes / 4; ++i) words[i] = 0x3c013c01u + i % 97;
    std::mt19937 random(1);
    std::normal_distribution<float> distribution;
    for (float& x : normal) x = distribution(random);
    p = cpu::process_row(&normal[0], kVocab, kSampled, cpu::select_isa());
    q = cpu::process_row(&normal[kVocab], kVocab, kSampled, cpu::select_isa());
  }

  const std::byte* next_weights(size_t bytes) {
    CHECK(bytes <= kBandwidthBytes);
    if (offset + bytes > kBandwidthBytes) offset = 0;
    const auto* at = static_cast<const std::byte*>(weights.data()) + offset;
    offset += bytes;
    return at;
  }
};

struct Case {
  std::string table, op, shape;
  Isa isa;
  double bytes;  // that must come from memory
  double flops;
  std::function<void(Thread&)> run;
};

struct Result {
  double seconds;                             // median, of the slowest thread
  double bytes_per_second, flops_per_second;  // of all threads
};

// int8: what the bytes say are any weights' values, and any scales.
void run_linear(Thread& thread, const LinearCase& c, WeightFormat format, Isa isa) {
  cpu::linear(thread.x.data(), thread.next_weights(cpu::packed_bytes(c.n, c.k, format)), nullptr,
              thread.y.data(), c.rows, c.n, c.k, format, isa);
}

// Every linear of SmolLM2-135M: 30 layers and the LM head, 269 MB.
constexpr LinearCase kLayer[] = {{0, 960, 576}, {0, 576, 576}, {0, 3072, 576}, {0, 576, 1536}};
constexpr LinearCase kLmHead = {0, 49152, 576};
constexpr int kNumLayers = 30;

Case stack_case(const char* table, int64_t rows, bool with_lm_head, Isa isa) {
  double weights = 0.0;
  for (const LinearCase& c : kLayer) weights += kNumLayers * static_cast<double>(c.n * c.k);
  if (with_lm_head) weights += static_cast<double>(kLmHead.n * kLmHead.k);
  return {table,
          "linear, all of SmolLM2-135M",
          std::to_string(rows) + " rows",
          isa,
          2 * weights,
          2 * weights * static_cast<double>(rows),
          [=](Thread& thread) {
            for (int layer = 0; layer < kNumLayers; ++layer) {
              for (const LinearCase& c : kLayer) {
                run_linear(thread, {rows, c.n, c.k}, WeightFormat::bf16, isa);
              }
            }
            if (with_lm_head) {
              run_linear(thread, {rows, kLmHead.n, kLmHead.k}, WeightFormat::bf16, isa);
            }
          }};
}

Case linear_case(const LinearCase& c, WeightFormat format, Isa isa) {
  char shape[64];
  std::snprintf(shape, sizeof shape, "%ld x %ld x %ld", c.rows, c.n, c.k);
  return {"ops",
          format == WeightFormat::int8 ? "linear, int8" : "linear",
          shape,
          isa,
          static_cast<double>(cpu::packed_bytes(c.n, c.k, format)),
          2.0 * static_cast<double>(c.rows * c.n * c.k),
          [=](Thread& thread) { run_linear(thread, c, format, isa); }};
}

// What lies between the products. Activations stay in the cache: rates above the memory's are no
// surprise.
struct RowOp {
  const char* name;
  double bytes;  // of an element
  void (*run)(Thread&, const RowCase&, Isa);
};

constexpr RowOp kRowOps[] = {
    {"rms_norm", 6,
     [](Thread& t, const RowCase& c, Isa isa) {
       cpu::rms_norm(t.x_f32.data(), nullptr, t.x.data(), t.y_bf16.data(), c.rows, c.width, 1e-5f,
                     isa);
     }},
    {"rms_norm of a sum", 14,
     [](Thread& t, const RowCase& c, Isa isa) {
       cpu::rms_norm(t.x_f32.data(), t.addend.data(), t.x.data(), t.y_bf16.data(), c.rows, c.width,
                     1e-5f, isa);
     }},
    {"layer_norm", 6,
     [](Thread& t, const RowCase& c, Isa isa) {
       cpu::layer_norm(t.x_f32.data(), nullptr, t.x.data(), t.x.data(), t.y_bf16.data(), c.rows,
                       c.width, 1e-5f, isa);
     }},
    {"silu_mul", 10,
     [](Thread& t, const RowCase& c, Isa isa) {
       cpu::silu_mul(t.x_f32.data(), t.y_bf16.data(), c.rows, c.width, isa);
     }},
    {"gelu_tanh", 6, [](Thread& t, const RowCase& c, Isa isa) {
       cpu::gelu_tanh(t.x_f32.data(), t.y_bf16.data(), c.rows * c.width, isa);
     }}};

Case row_case(const RowOp& op, const RowCase& c, Isa isa) {
  return {"ops",
          op.name,
          std::to_string(c.rows) + " x " + std::to_string(c.width),
          isa,
          static_cast<double>(c.rows * c.width) * op.bytes,
          0.0,
          [=](Thread& thread) { op.run(thread, c, isa); }};
}

// Rows of the embedding that lie apart, each in a panel of its own, of which it touches every line.
Case embed_case(const RowCase& c) {
  const int64_t table_rows = c.rows * cpu::kPanelRows;
  return {"ops",
          "embed",
          std::to_string(c.rows) + " x " + std::to_string(c.width),
          Isa::scalar,
          static_cast<double>(cpu::packed_bytes(table_rows, c.width, WeightFormat::bf16)),
          0.0,
          [=](Thread& thread) {
            thread.tokens.resize(c.rows);
            for (int64_t r = 0; r < c.rows; ++r) {
              thread.tokens[r] = static_cast<int32_t>(r * cpu::kPanelRows);
            }
            cpu::embed(
                thread.next_weights(cpu::packed_bytes(table_rows, c.width, WeightFormat::bf16)),
                thread.tokens.data(), 0, thread.y.data(), c.rows, table_rows, c.width);
          }};
}

std::string name_of(const AttentionCase& c) {
  char shape[96];
  std::snprintf(shape, sizeof shape, "%ld x %ld rows after %ld, %ld/%ld heads of %ld", c.sequences,
                c.rows, c.context, c.shape.num_heads, c.shape.num_kv_heads, c.shape.head_dim);
  return shape;
}

int64_t pages_of_each(const AttentionCase& c) {
  return (c.context + c.rows + kPageTokens - 1) / kPageTokens;
}

int64_t pages_elements(const AttentionCase& c) {
  return c.sequences * pages_of_each(c) * kPageTokens * c.shape.num_kv_heads * c.shape.head_dim;
}

// Into the thread's own rows.
RowPointers map_rows(Thread& t, const AttentionCase& c) {
  t.positions.clear();
  t.sequences.clear();
  for (int64_t s = 0; s < c.sequences; ++s) {
    for (int64_t r = 0; r < c.rows; ++r) {
      t.positions.push_back(static_cast<int32_t>(c.context + r));
      t.sequences.push_back(static_cast<int32_t>(s));
    }
  }
  t.page_tables.resize(c.sequences * pages_of_each(c));
  std::iota(t.page_tables.begin(), t.page_tables.end(), 0);
  return {t.positions.data(), t.sequences.data(), t.page_tables.data(), pages_of_each(c)};
}

// By an angle of 0, so that it can be done again and again.
Case rope_case(const AttentionCase& c, Isa isa) {
  const int64_t heads = c.shape.num_heads, kv_heads = c.shape.num_kv_heads;
  // All is read; q and k are written back, k and v into pages.
  const double bytes_of_row = static_cast<double>(
      c.shape.head_dim * (4 * (heads + 2 * kv_heads) + 4 * (heads + kv_heads) + 2 * 2 * kv_heads));
  return {"ops",
          "rope_and_cache",
          name_of(c),
          isa,
          static_cast<double>(c.sequences * c.rows) * bytes_of_row,
          0.0,
          [=](Thread& t) {
            CHECK(pages_elements(c) <= std::ssize(t.pages));
            cpu::rope_and_cache(t.x_f32.data(), t.ones.data(), t.addend.data(), t.pages.data(),
                                t.y_bf16.data(), map_rows(t, c), c.sequences * c.rows, c.shape,
                                isa);
          }};
}

Case attention_case(const AttentionCase& c, Isa isa) {
  const int64_t length = c.context + c.rows;
  const double kv_bytes =
      4.0 * static_cast<double>(c.sequences * length * c.shape.num_kv_heads * c.shape.head_dim);
  const double attended = static_cast<double>(c.rows) * (c.context + 0.5 * (c.rows + 1));
  const double flops = 4.0 * static_cast<double>(c.sequences) * attended *
                       static_cast<double>(c.shape.num_heads * c.shape.head_dim);
  return {"ops", "attention", name_of(c), isa, kv_bytes, flops, [=](Thread& t) {
            const int64_t elements = pages_elements(c);
            const auto* pages =
                reinterpret_cast<const bf16*>(t.next_weights((4 * elements + 63) / 64 * 64));
            cpu::attention(t.x_f32.data(), pages, pages + elements, t.y_bf16.data(), t.y.data(),
                           map_rows(t, c), c.sequences * c.rows, c.shape, isa);
          }};
}

// How a row's token is chosen. At T 1 nearly all tokens of such logits have a share, so that top-p
// 0.95 is beyond the candidates and looks at all of them; at T 0.1 it is not.
struct Choosing {
  const char* name;
  Processors processors;
};

constexpr Choosing kChoosings[] = {
    {"greedy", {}},
    {"T 1", kSampled},
    {"T 1, coupled", {.mode = VerifyMode::coupled}},
    {"T 0.1, top-p 0.95", {.mode = VerifyMode::rejection, .temperature = 0.1f, .top_p = 0.95f}},
    {"T 1, top-p 0.95", {.mode = VerifyMode::rejection, .top_p = 0.95f}}};

// Logits stay in the cache, as those do that a step has just computed.
Case logits_case(const char* op, const Choosing& by, int64_t rows, Isa isa,
                 std::function<void(Thread&)> run) {
  return {"verify",
          std::string(op) + ", " + by.name,
          std::to_string(rows) + " x " + std::to_string(kVocab),
          isa,
          static_cast<double>(rows * kVocab) * sizeof(float),
          0.0,
          std::move(run)};
}

Case summary_case(const Choosing& by, int64_t num_rows, Isa isa) {
  std::vector<VerifyRow> rows(num_rows);
  for (int32_t r = 0; r < num_rows; ++r) {
    const Processors& processors = by.processors;
    rows[r] = {.logits_row = r,
               .candidates_slot = processors.filtered() ? r : -1,
               .processors = processors,
               .key = {.seed = 1, .base = static_cast<uint32_t>(r)},
               .races = processors.mode == VerifyMode::coupled};
  }
  return logits_case("verify_summary", by, num_rows, isa, [=](Thread& t) {
    cpu::verify_summary(t.normal.data(), kVocab, 0, rows.data(), num_rows, t.found.summaries,
                        t.found.candidates[0], isa);
  });
}

Case draw_case(const Choosing& by, Isa isa) {
  const DraftRow row = {.processors = by.processors, .key = {.seed = 1}};
  return logits_case("sample_drafts", by, 1, isa, [=](Thread& t) {
    cpu::sample_drafts(t.normal.data(), kVocab, &row, 1, &t.found.token, &t.found.distribution,
                       t.found.logits.data(), isa);
  });
}

// Of the extra token behind a refusal: p of one row of logits, q of another.
Case extra_token_case(Isa isa) {
  return logits_case("race", {"T 1", kSampled}, 2, isa, [=](Thread& t) {
    const RaceRow row = {.p_logits = &t.normal[0],
                         .q_logits = &t.normal[kVocab],
                         .p = t.p,
                         .q = t.q,
                         .excluded = -1,
                         .first_token = 0,
                         .size = kVocab};
    t.found.token = cpu::race(row, {.seed = 1}, 0, Purpose::extra, isa).token;
  });
}

std::vector<Isa> chosen_isas(const std::string& names) {
  std::vector<Isa> isas;
  for (Isa isa : cpu::available_isas()) {
    const std::string name(cpu::isa_name(isa));
    const bool named = ("," + names + ",").find("," + name + ",") != std::string::npos;
    if (names.empty() ? isa != Isa::scalar : named) isas.push_back(isa);
  }
  const auto wanted = names.empty() ? 0 : std::count(names.begin(), names.end(), ',') + 1;
  if (!names.empty() && static_cast<size_t>(wanted) != isas.size()) {
    throw Error("--isas " + names + " names an instruction set that this machine cannot execute");
  }
  if (isas.empty()) isas.push_back(Isa::scalar);
  return isas;
}

std::vector<Case> all_cases(const OpBenchOptions& options) {
  std::vector<Case> cases = {{"", "read", "", Isa::scalar, kBandwidthBytes, 0.0, [](Thread& t) {
                                volatile uint64_t sum =
                                    read_all(static_cast<const std::byte*>(t.weights.data()),
                                             kBandwidthBytes);
                                static_cast<void>(sum);
                              }}};
  const std::vector<Isa> isas = chosen_isas(options.isas);
  const auto wants = [&](const char* table) {
    return options.only.empty() || options.only == table;
  };
  for (Isa isa : isas) {
    for (int64_t rows = 1; rows <= 16 && wants("stack"); ++rows) {
      cases.push_back(stack_case("stack", rows, true, isa));
    }
    for (int64_t rows = 32; rows <= 256 && wants("prefill"); rows *= 2) {
      cases.push_back(stack_case("prefill", rows, false, isa));
    }
  }
  if (wants("verify")) {
    for (const Choosing& by : kChoosings) {
      for (int64_t rows : {int64_t{1}, kLogitRows}) {
        for (Isa isa : isas) cases.push_back(summary_case(by, rows, isa));
      }
      for (Isa isa : isas) cases.push_back(draw_case(by, isa));
    }
    for (Isa isa : isas) cases.push_back(extra_token_case(isa));
  }
  if (!wants("ops")) return cases;
  for (const LinearCase& c : kLinearCases) {
    for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::int8}) {
      for (Isa isa : isas) cases.push_back(linear_case(c, format, isa));
    }
  }
  for (const RowCase& c : kRowCases) cases.push_back(embed_case(c));
  for (const RowOp& op : kRowOps) {
    for (const RowCase& c : kRowCases) {
      for (Isa isa : isas) cases.push_back(row_case(op, c, isa));
    }
  }
  for (const AttentionCase& c : kAttentionCases) {
    for (Isa isa : isas) cases.push_back(rope_case(c, isa));
  }
  for (const AttentionCase& c : kAttentionCases) {
    for (Isa isa : isas) cases.push_back(attention_case(c, isa));
  }
  return cases;
}

// All threads run the same case at the same time; the first, uncounted round says how many runs
// make a sample.
std::vector<Result> measure(const std::vector<Case>& cases, const OpBenchOptions& options) {
  const size_t num_threads = static_cast<size_t>(options.threads);
  std::vector<int> runs(cases.size(), 1);
  // [case][thread][round]
  std::vector<std::vector<std::vector<double>>> seconds(
      cases.size(), std::vector<std::vector<double>>(num_threads));
  std::barrier barrier(options.threads);
  const auto work = [&](size_t thread_index) {
    set_float_environment();
    Thread thread;
    for (int round = 0; round <= options.repeats; ++round) {
      for (size_t i = 0; i < cases.size(); ++i) {
        barrier.arrive_and_wait();
        const int count = runs[i];
        const Clock::time_point start = Clock::now();
        for (int run = 0; run < count; ++run) cases[i].run(thread);
        const double once = std::chrono::duration<double>(Clock::now() - start).count() / count;
        barrier.arrive_and_wait();
        if (round > 0) {
          seconds[i][thread_index].push_back(once);
        } else if (thread_index == 0) {
          runs[i] = 1 + static_cast<int>(kMinSeconds / once);
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t t = 1; t < num_threads; ++t) threads.emplace_back(work, t);
  work(0);
  for (std::thread& thread : threads) thread.join();

  std::vector<Result> results(cases.size(), Result{});
  for (size_t i = 0; i < cases.size(); ++i) {
    for (std::vector<double>& samples : seconds[i]) {
      std::sort(samples.begin(), samples.end());
      const double median = samples[samples.size() / 2];
      results[i].seconds = std::max(results[i].seconds, median);
      results[i].bytes_per_second += cases[i].bytes / median;
      results[i].flops_per_second += cases[i].flops / median;
    }
  }
  return results;
}

void print_markdown(const std::vector<Case>& cases, const std::vector<Result>& results) {
  std::string table;
  for (size_t i = 1; i < cases.size(); ++i) {
    const Case& c = cases[i];
    if (c.table != table) {
      table = c.table;
      std::printf(
          "\n| %s | shape | instruction set | µs | GB/s | of what is read | GFLOP/s |\n"
          "| --- | --- | --- | ---: | ---: | ---: | ---: |\n",
          table.c_str());
    }
    std::printf("| %s | %s | %s | %.1f | %.2f | %.0f %% | %.1f |\n", c.op.c_str(), c.shape.c_str(),
                std::string(cpu::isa_name(c.isa)).c_str(), results[i].seconds * 1e6,
                results[i].bytes_per_second / 1e9,
                100 * results[i].bytes_per_second / results[0].bytes_per_second,
                results[i].flops_per_second / 1e9);
  }
}

void write_json(const std::filesystem::path& file, const std::vector<Case>& cases,
                const std::vector<Result>& results, const OpBenchOptions& options) {
  std::vector<Measurement> measurements;
  for (size_t i = 1; i < cases.size(); ++i) {
    const Case& c = cases[i];
    measurements.push_back(
        {c.table + "/" + c.op + "/" + c.shape + "/" + std::string(cpu::isa_name(c.isa)),
         results[i].seconds,
         options.repeats,
         {{"bytes_per_second", results[i].bytes_per_second},
          {"of_memory", results[i].bytes_per_second / results[0].bytes_per_second},
          {"flops_per_second", results[i].flops_per_second}}});
  }
  write_bench_report(file,
                     {{"device", "cpu"},
                      {"threads", std::to_string(options.threads)},
                      {"memory_bytes_per_second", std::to_string(results[0].bytes_per_second)}},
                     measurements);
}

}  // namespace

int run_op_bench(const OpBenchOptions& options) {
  CHECK(options.threads > 0 && options.repeats > 0);
  check_bench_report(options.json);
  const std::vector<Case> cases = all_cases(options);
  const std::vector<Result> results = measure(cases, options);
  std::printf("%d thread%s read %.2f GB/s from memory (%zu MiB each).\n", options.threads,
              options.threads == 1 ? "" : "s", results[0].bytes_per_second / 1e9,
              kBandwidthBytes >> 20);
  print_markdown(cases, results);
  if (options.json) write_json(*options.json, cases, results, options);
  return 0;
}

}  // namespace outrider
