// What a request means by a drafter's name.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "engine/request.h"

namespace outrider {

// One that the server has, or nullopt. "model" is what was trained for the target: its draft model
// or, where there is none, its draft head.
inline std::optional<DrafterKind> named_drafter(const std::string& name, const Limits& limits) {
  const auto at_hand = [&](DrafterKind kind) {
    return std::find(limits.drafters.begin(), limits.drafters.end(), kind) != limits.drafters.end();
  };
  const auto kind = drafter_from_name(name);
  if (kind && at_hand(*kind)) return kind;
  if (kind == DrafterKind::model && at_hand(DrafterKind::head)) return DrafterKind::head;
  return std::nullopt;
}

}  // namespace outrider
