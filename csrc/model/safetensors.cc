#include "model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "model/json_file.h"
#include "model/json_node.h"

namespace outrider {

namespace {

using nlohmann::json;

// A header names a tensor in about 120 bytes: these bounds are beyond the largest models and keep
// what a bad file can make us allocate small.
constexpr uint64_t kMaxHeaderBytes = uint64_t{16} << 20;
constexpr size_t kMaxIndexBytes = size_t{16} << 20;
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxFiles = 1000;

// Bytes of an element; 0 for a dtype that is not known.
int64_t element_bytes(std::string_view dtype) {
  static constexpr std::pair<std::string_view, int64_t> kBytes[] = {
      {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"F16", 2},  {"BF16", 2}, {"I16", 2}, {"U16", 2},     {"F32", 4},
      {"I32", 4},  {"U32", 4},  {"F64", 8}, {"I64", 8},     {"U64", 8}};
  for (const auto& [name, bytes] : kBytes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

// Where a tensor lies in the data section.
struct Extent {
  int64_t begin = 0;
  int64_t end = 0;
  std::string_view name;
};

// An array of at most `most` sizes.
std::vector<int64_t> read_sizes(const JsonNode& node, size_t most) {
  if (!node.value().is_array() || node.value().size() > most) {
    node.refuse("an array of at most " + std::to_string(most));
  }
  std::vector<int64_t> sizes;
  for (const JsonNode& size : node.elements()) sizes.push_back(size.integer(0, INT64_MAX));
  return sizes;
}

// One entry of the header, checked for itself; `data` is the section behind the header. Sets
// begin and end of *extent.
StoredTensor read_tensor(const JsonNode& entry, std::span<const uint8_t> data, Extent* extent) {
  StoredTensor tensor;
  tensor.dtype = entry["dtype"].string();
  const int64_t item = element_bytes(tensor.dtype);
  if (item == 0) entry["dtype"].refuse("a dtype of the format, such as \"BF16\"");
  tensor.shape = read_sizes(entry["shape"], kMaxRank);
  tensor.bytes = item;
  for (const int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(tensor.bytes, size, &tensor.bytes)) {
      throw Error(entry["shape"].where() + " is " + show_shape(tensor.shape) +
                  "; expected fewer bytes than 2^63");
    }
  }
  const std::vector<int64_t> offsets = read_sizes(entry["data_offsets"], 2);
  if (offsets.size() != 2) entry["data_offsets"].refuse("two offsets, begin and end");
  const auto [begin, end] = std::pair(offsets[0], offsets[1]);
  const std::string found = entry["data_offsets"].where() + " is " + show_shape(offsets);
  if (begin > end || end > static_cast<int64_t>(data.size())) {
    throw Error(found + "; expected a range within the " + std::to_string(data.size()) +
                " bytes of data in the file");
  }
  if (end - begin != tensor.bytes) {
    throw Error(found + "; expected the " + std::to_string(tensor.bytes) + " bytes of shape " +
                show_shape(tensor.shape) + " in " + tensor.dtype);
  }
  tensor.data = data.data() + begin;
  if (reinterpret_cast<uintptr_t>(tensor.data) % item != 0) {
    throw Error(found + ", which is unaligned in the file; expected a multiple of " +
                std::to_string(item) + " bytes");
  }
  extent->begin = begin;
  extent->end = end;
  return tensor;
}

// Neither gaps nor overlaps, up to the end of the file.
void check_extents(std::vector<Extent>& extents, int64_t data_bytes, const std::string& path) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != end) {
      throw Error(path + ": tensor " + quote(extent.name) + " starts at byte " +
                  std::to_string(extent.begin) + " of the data; expected " + std::to_string(end) +
                  ", where the one before it ends");
    }
    end = extent.end;
  }
  if (end != data_bytes) {
    throw Error(path + ": the tensors end at byte " + std::to_string(end) +
                " of the data; expected " + std::to_string(data_bytes) + ", the end of the file");
  }
}

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

}  // namespace

int64_t StoredTensor::size() const { return bytes / element_bytes(dtype); }

std::string show_shape(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const auto bytes = file_.bytes();
  uint64_t header_bytes = 0;  // little-endian, as this machine is
  if (bytes.size() < sizeof header_bytes) {
    throw Error(path.string() + ": has " + std::to_string(bytes.size()) +
                " bytes; expected a safetensors header");
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const uint64_t most = std::min<uint64_t>(kMaxHeaderBytes, bytes.size() - sizeof header_bytes);
  if (header_bytes > most) {
    throw Error(path.string() + ": header length is " + std::to_string(header_bytes) +
                "; expected at most " + std::to_string(most) + " in a safetensors file");
  }
  const json header = parse_json_object(bytes.subspan(sizeof header_bytes, header_bytes),
                                        path.string() + ": header");
  const auto data = bytes.subspan(sizeof header_bytes + header_bytes);

  std::vector<Extent> extents;
  for (const auto& [name, entry] : header.items()) {
    const bool is_metadata = name == "__metadata__";
    const std::string where =
        path.string() + ": " + (is_metadata ? "metadata" : "tensor " + quote(name));
    if (!entry.is_object()) throw Error(where + " is " + show(entry) + "; expected an object");
    const JsonNode node(entry, where);
    if (is_metadata) {
      for (const auto& item : entry.items()) {
        metadata_.emplace(item.key(), node[item.key()].string());
      }
      continue;
    }
    Extent extent;
    const auto place = tensors_.emplace(name, read_tensor(node, data, &extent)).first;
    extent.name = place->first;
    extents.push_back(extent);
  }
  check_extents(extents, static_cast<int64_t>(data.size()), path.string());
}

Checkpoint::Checkpoint(const std::filesystem::path& directory) : directory_(directory) {
  const auto single = directory / "model.safetensors";
  const auto index = directory / "model.safetensors.index.json";
  if (!std::filesystem::is_directory(directory)) {
    throw Error(directory.string() + ": is no directory; expected a checkpoint's");
  }
  if (std::filesystem::exists(single)) {
    paths_ = {single};
    files_.emplace_back(single);
    for (const auto& [name, tensor] : files_[0].tensors()) tensors_.emplace(name, &tensor);
  } else if (std::filesystem::exists(index)) {
    read_index(index);
  } else {
    throw Error(directory.string() +
                ": holds no weights; expected model.safetensors or model.safetensors.index.json");
  }
}

void Checkpoint::read_index(const std::filesystem::path& index) {
  const json root = load_json_object(index, kMaxIndexBytes);
  const JsonNode weight_map = JsonNode(root, index)["weight_map"];
  if (!weight_map.value().is_object()) weight_map.refuse("an object");
  std::map<std::string, size_t> numbers;  // file name → place in files_, in order of name
  for (const auto& [tensor, file] : weight_map.value().items()) {
    if (!file.is_string() || !is_plain_file_name(file.get<std::string>())) {
      throw Error(weight_map.where() + ": " + quote(tensor) + " is " + show(file) +
                  "; expected the plain name of a file in this directory");
    }
    numbers.emplace(file.get<std::string>(), 0);
    file_of_.emplace(tensor, file.get<std::string>());
  }
  if (numbers.empty()) throw Error(weight_map.where() + " names no file; expected at least one");
  if (numbers.size() > kMaxFiles) {
    throw Error(weight_map.where() + " names " + std::to_string(numbers.size()) +
                " files; expected at most " + std::to_string(kMaxFiles));
  }
  paths_ = {index};
  for (auto& [name, number] : numbers) {
    number = files_.size();
    paths_.push_back(directory_ / name);
    files_.emplace_back(directory_ / name);
  }
  for (const auto& [tensor, file] : file_of_) {
    const auto& tensors = files_[numbers.at(file)].tensors();
    const auto found = tensors.find(tensor);
    if (found == tensors.end()) {
      throw Error((directory_ / file).string() + ": tensor " + quote(tensor) +
                  " is missing; expected as model.safetensors.index.json says");
    }
    tensors_.emplace(tensor, &found->second);
  }
  size_t stored = 0;
  for (const SafetensorsFile& file : files_) stored += file.tensors().size();
  if (stored != tensors_.size()) {
    throw Error(index.string() + ": weight_map names " + std::to_string(tensors_.size()) +
                " tensors; expected the " + std::to_string(stored) + " that its files hold");
  }
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

std::string Checkpoint::path_of(std::string_view name) const {
  const auto found = file_of_.find(name);
  return (found == file_of_.end() ? paths_[0] : directory_ / found->second).string();
}

}  // namespace outrider
