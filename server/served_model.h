// What a server says of the model that it serves, beyond what the engine knows.
#pragma once

#include <string>

#include "core/numerics.h"
#include "model/chat_template.h"

namespace outrider {

struct ServedModel {
  std::string name;     // the checkpoint's directory name
  std::string backend;  // Backend::description()
  Numerics numerics = Numerics::exact;
  int num_ranks = 1;
  ChatTemplate chat_template;
};

}  // namespace outrider
