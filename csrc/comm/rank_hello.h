// RankHello: what a rank says of itself at start-up, so that a mixed job is refused before serving.
#pragma once

#include <string>
#include <vector>

namespace outrider {

struct RankHello {
  std::string host;             // where it runs; not compared, named in the message
  std::string version;          // of Outrider
  std::string instruction_set;  // of the CPU kernels that were chosen
  std::string device;           // GPU model, or "cpu"
  std::string nccl_version;     // empty: tensors travel without NCCL
  std::string checkpoint_hash;
  std::string tokens_hash;    // of its tokenizer, and of what ends an answer
  std::string draft_hash;     // empty: no draft
  std::string settings_hash;  // of the options that every rank must share
};

// Between ranks, before they are known to be of one build: parse_hello throws Error where the bytes
// are not a hello of this format.
std::string serialise_hello(const RankHello& hello);
RankHello parse_hello(const std::string& bytes);

// hellos: [ranks]. Throws Error naming the first field in which a rank differs from rank 0, and
// both values.
void compare_hellos(const std::vector<RankHello>& hellos);

}  // namespace outrider
