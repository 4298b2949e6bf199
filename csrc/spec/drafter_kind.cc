#include "spec/drafter_kind.h"

#include <algorithm>

namespace outrider {

std::string drafter_name(DrafterKind kind) {
  switch (kind) {
    case DrafterKind::none:
      return "none";
    case DrafterKind::prompt_lookup:
      return "prompt_lookup";
    case DrafterKind::ngram:
      return "ngram";
    case DrafterKind::random:
      return "random";
    case DrafterKind::model:
      return "model";
    case DrafterKind::head:
      return "head";
    case DrafterKind::bigram:
      return "bigram";
    case DrafterKind::unigram:
      return "unigram";
  }
  return "none";
}

std::optional<DrafterKind> drafter_from_name(const std::string& name) {
  for (int d = 1; d < kNumDrafterKinds; ++d) {
    const auto kind = static_cast<DrafterKind>(d);
    if (name == drafter_name(kind)) return kind;
  }
  return std::nullopt;
}

std::vector<std::string> drafter_names() {
  std::vector<std::string> names;
  for (int d = 1; d < kNumDrafterKinds; ++d) {
    names.push_back(drafter_name(static_cast<DrafterKind>(d)));
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool drafts_by_copying(DrafterKind kind) {
  return kind == DrafterKind::prompt_lookup || kind == DrafterKind::ngram;
}

}  // namespace outrider
