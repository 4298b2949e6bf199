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
  EXPECT_NE(select_isa(), Isa::amx_bf16);  // whose bits are its own
}

TEST_F(IsaTest, RefusesAnUnknownOne) {
  EXPECT_EQ(
      error_of("avx3"),
      "OUTRIDER_CPU_ISA is \"avx3\"; expected one of scalar, avx2, avx512, avx512_bf16, amx_bf16");
  EXPECT_EQ(
      error_of(""),
      "OUTRIDER_CPU_ISA is \"\"; expected one of scalar, avx2, avx512, avx512_bf16, amx_bf16");
}

// What the processor is asked by a trial that may end with a signal.
TEST_F(IsaTest, AskingLeavesTheFloatEnvironment) {
  set_float_environment();
  constexpr unsigned kNoExceptions = ~0x3fu;  // flags that computing raises
  const unsigned before = _mm_getcsr() & kNoExceptions;
  isa_available(Isa::avx512_bf16);
  EXPECT_EQ(_mm_getcsr() & kNoExceptions, before);
}

class EachIsaTest : public IsaTest, public testing::WithParamInterface<Isa> {};

// The tests of kernels go over what the machine executes; what it does not is said here.
TEST_P(EachIsaTest, IsTakenOrRefused) {
  const std::string name(isa_name(GetParam()));
  if (isa_available(GetParam())) {
    setenv("OUTRIDER_CPU_ISA", name.c_str(), 1);
    EXPECT_EQ(select_isa(), GetParam());
    return;
  }
  EXPECT_EQ(error_of(name.c_str()),
            "OUTRIDER_CPU_ISA is " + name + ", which this machine cannot execute");
  GTEST_SKIP() << "no test executed " << name << ": this machine cannot";
}

INSTANTIATE_TEST_SUITE_P(, EachIsaTest,
                         testing::Values(Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_bf16,
                                         Isa::amx_bf16),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

TEST_F(IsaTest, LeavesTheSignalHandlerAsItWas) {
  isa_available(Isa::avx512_bf16);
  struct sigaction action;
  ASSERT_EQ(sigaction(SIGILL, nullptr, &action), 0);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace outrider::cpu
