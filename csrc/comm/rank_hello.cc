#include "comm/rank_hello.h"

#include <cstdint>

#include "core/bytes.h"
#include "core/error.h"

namespace outrider {
namespace {

constexpr uint64_t kHelloFormat = 0x33004F4C4C4548;  // "HELLO", 0, "3": changes with the fields

struct ComparedField {
  std::string RankHello::*value;
  const char* name;
  const char* expected;
};

constexpr ComparedField kComparedFields[] = {
    {&RankHello::version, "version", "every rank must run the same build of Outrider"},
    {&RankHello::instruction_set, "instruction set", "every rank must choose the same CPU kernels"},
    {&RankHello::device, "device", "every rank must run on the same model of device"},
    {&RankHello::nccl_version, "NCCL", "every rank must load the same version"},
    {&RankHello::checkpoint_hash, "checkpoint", "every rank must read the same files"},
    {&RankHello::tokens_hash, "tokenizer", "every rank must read the same files"},
    {&RankHello::draft_hash, "draft", "every rank must read the same files"},
    {&RankHello::settings_hash, "settings", "every rank must be started with the same options"},
};

std::string shown(const std::string& value) { return value.empty() ? "none" : value; }

std::string named(int rank, const RankHello& hello) {
  return "rank " + std::to_string(rank) + (hello.host.empty() ? "" : " (" + hello.host + ")");
}

}  // namespace

std::string serialise_hello(const RankHello& hello) {
  ByteWriter writer;
  writer.put(kHelloFormat);
  writer.put(hello.host);
  for (const ComparedField& field : kComparedFields) writer.put(hello.*field.value);
  return {writer.bytes().begin(), writer.bytes().end()};
}

RankHello parse_hello(const std::string& bytes) {
  ByteReader reader(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (bytes.size() < sizeof(kHelloFormat) || reader.get<uint64_t>() != kHelloFormat) {
    throw Error(
        "a rank's hello has another format: every rank must run the same build of Outrider");
  }
  RankHello hello;
  hello.host = reader.get_string();
  for (const ComparedField& field : kComparedFields) hello.*field.value = reader.get_string();
  if (!reader.done()) throw Error("a rank's hello has bytes left over at its end");
  return hello;
}

void compare_hellos(const std::vector<RankHello>& hellos) {
  for (size_t rank = 1; rank < hellos.size(); ++rank) {
    for (const ComparedField& field : kComparedFields) {
      const std::string& found = hellos[rank].*field.value;
      const std::string& expected = hellos[0].*field.value;
      if (found == expected) continue;
      throw Error(named(static_cast<int>(rank), hellos[rank]) + " has " + field.name + " " +
                  shown(found) + ", " + named(0, hellos[0]) + " has " + shown(expected) + ": " +
                  field.expected);
    }
  }
}

}  // namespace outrider
