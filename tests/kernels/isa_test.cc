#include "kernels/cpu/isa.h"

#include <signal.h>
#include <stdlib.h>

#include "core/error.h"
#include "tests/kernels/kernel_test.h"

namespace outrider::cpu {
namespace {

class IsaTest : public testing::Test {
 protected:
  ~IsaTest() override { unsetenv("OUTRIDER_CPU_ISA"); }
};

std::string error_of(const char* wanted) {
  setenv("OUTRIDER_CPU_ISA", wanted, 1);
  try {
    select_isa();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(IsaTest, TakesAnAvailableOne) {
  EXPECT_TRUE(isa_available(select_isa()));
  EXPECT_EQ(available_isas().front(), Isa::scalar);
}

TEST_F(IsaTest, TakesTheOneAskedFor) {
  for (Isa isa : available_isas()) {
    setenv("OUTRIDER_CPU_ISA", std::string(isa_name(isa)).c_str(), 1);
    EXPECT_EQ(select_isa(), isa);
  }
}

TEST_F(IsaTest, RefusesAnUnknownOne) {
  EXPECT_EQ(error_of("avx3"),
            "OUTRIDER_CPU_ISA is \"avx3\"; expected one of scalar, avx2, avx512, avx512_bf16");
  EXPECT_EQ(error_of(""),
            "OUTRIDER_CPU_ISA is \"\"; expected one of scalar, avx2, avx512, avx512_bf16");
}

TEST_F(IsaTest, RefusesWhatTheMachineCannotExecute) {
  for (Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    if (isa_available(isa)) continue;
    const std::string name(isa_name(isa));
    EXPECT_EQ(error_of(name.c_str()),
              "OUTRIDER_CPU_ISA is " + name + ", which this machine cannot execute");
  }
}

TEST_F(IsaTest, LeavesTheSignalHandlerAsItWas) {
  isa_available(Isa::avx512_bf16);
  struct sigaction action;
  ASSERT_EQ(sigaction(SIGILL, nullptr, &action), 0);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace outrider::cpu
