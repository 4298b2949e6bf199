// What stands between the two products of an FFN.
#pragma once

namespace outrider {

enum class Activation { swiglu, gelu_tanh };  // swiglu: silu(gate) * up

// Outputs of the first product that make one input of the second.
constexpr int num_inputs(Activation activation) { return activation == Activation::swiglu ? 2 : 1; }

}  // namespace outrider
