// Plain data of a table of logits by the token before, shared by the CPU and the CUDA twins.
#pragma once

#include <cstdint>

namespace outrider {

struct TableRow {
  int32_t begin, end;  // of its entries
};

// What follows token t: entries [rows[t].begin, rows[t].end), by ascending token. Rows may share
// entries.
struct LogitTable {
  const TableRow* rows;   // [vocab_size]
  const int32_t* tokens;  // [entries]
  const float* logits;    // [entries]
};

}  // namespace outrider
