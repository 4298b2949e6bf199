// The drafters that a server has, from the files that it was given.
#include "spec/drafters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "comm/self_communicator.h"
#include "comm/thread_communicator.h"
#include "model/checkpoint_hash.h"
#include "model/transformer.h"
#include "testing/checkpoints.h"
#include "testing/count_file.h"
#include "testing/one_line_error.h"
#include "testing/temporary_directory.h"

namespace outrider {
namespace {

// One rank, which notes what memory it is told to share.
class NotingCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  bool is_near() const override { return false; }
  void all_reduce_sum(TensorView x, Stream& stream) override { self_->all_reduce_sum(x, stream); }
  void all_gather(TensorView mine, TensorView all, Stream& stream) override {
    self_->all_gather(mine, all, stream);
  }
  void broadcast(TensorView x, int root, Stream& stream) override {
    self_->broadcast(x, root, stream);
  }
  bool share(std::span<std::byte> memory) override {
    shared.push_back(memory);
    return false;
  }

  std::vector<std::span<std::byte>> shared;

 private:
  std::unique_ptr<Communicator> self_ = make_self_communicator();
};

class DraftersTest : public testing::Test {
 protected:
  DraftersTest() {
    counts_.write("counts.safetensors", some_counts(512, file_hash(directory_ / "tokenizer.json")));
  }

  Drafters make(const DrafterFiles& files) {
    return Drafters(files, {directory_, hash_, config_, tokenizer_}, {32, 4, 64}, *backend_,
                    communicator_, {});
  }

  const std::filesystem::path directory_ = test_checkpoint("tiny");
  const std::string hash_ = checkpoint_hash(directory_);
  const ModelConfig config_ = ModelConfig::load(directory_);
  const Tokenizer tokenizer_ = Tokenizer::load(directory_);
  const std::unique_ptr<Backend> backend_ = make_cpu_backend();
  TemporaryDirectory counts_;
  NotingCommunicator communicator_;
  const DrafterFiles every_file_{.model = test_checkpoint("tiny-draft"),
                                 .head = test_checkpoint("tiny-head"),
                                 .counts = counts_.path() / "counts.safetensors"};
};

TEST_F(DraftersTest, AreThoseWhoseFilesAreThere) {
  const auto names = [](const DrafterFiles& files) {
    std::vector<std::string> names;
    for (const DrafterKind kind : drafters_at_hand(files)) names.push_back(drafter_name(kind));
    std::sort(names.begin(), names.end());
    return names;
  };
  EXPECT_EQ(names({}), (std::vector<std::string>{"ngram", "prompt_lookup", "random"}));
  EXPECT_EQ(names(every_file_), drafter_names());

  for (const DrafterFiles& files : {DrafterFiles{}, every_file_}) {
    const Drafters drafters = make(files);
    for (const DrafterKind kind : drafters_at_hand(files)) {
      EXPECT_EQ(drafters.find(kind) == nullptr, drafts_by_copying(kind)) << drafter_name(kind);
    }
    EXPECT_EQ(drafters.find(DrafterKind::none), nullptr);
    EXPECT_EQ(drafters.model(), drafters.find(DrafterKind::model));
    EXPECT_EQ(drafters.hash().empty(), !files.model);
  }
}

TEST_F(DraftersTest, WithoutItsFileADrafterIsRefusedByItsFlag) {
  for (const auto& [name, flag] :
       {std::pair("model", "--draft DIR"), std::pair("head", "--draft-head DIR"),
        std::pair("bigram", "--draft-counts FILE"), std::pair("unigram", "--draft-counts FILE")}) {
    const DrafterKind kind = *drafter_from_name(name);
    expect_one_line_error({std::string("--drafter ") + name, flag},
                          [&] { check_drafter(kind, {}); });
    EXPECT_NO_THROW(check_drafter(kind, every_file_));
  }
  EXPECT_NO_THROW(check_drafter(DrafterKind::random, {}));
}

TEST_F(DraftersTest, TheDefaultIsTheLikeliestToPay) {
  DrafterFiles files = every_file_;
  EXPECT_EQ(default_drafter(files, DrafterKind::random), DrafterKind::random);
  EXPECT_EQ(default_drafter(files, {}), DrafterKind::head);
  files.head.reset();
  EXPECT_EQ(default_drafter(files, {}), DrafterKind::model);
  files.model.reset();
  EXPECT_EQ(default_drafter(files, {}), DrafterKind::prompt_lookup);
}

// Their ids mean other text, though there are as many of them.
TEST_F(DraftersTest, RefusesCountsOfAnotherTokenizersTokens) {
  counts_.write("another.safetensors", some_counts(512, "0123456789abcdef"));
  const DrafterFiles another{.counts = counts_.path() / "another.safetensors"};
  const std::vector<std::string> expected = {another.counts->string(),
                                             "tokenizer is \"0123456789abcdef\"; expected",
                                             file_hash(directory_ / "tokenizer.json")};
  expect_one_line_error(expected, [&] { check_counts(*another.counts, directory_); });
  expect_one_line_error(expected, [&] { make(another); });
  EXPECT_NO_THROW(check_counts(*every_file_.counts, directory_));
}

// Ranks keep one copy of what all of them read alike, and of nothing else.
TEST_F(DraftersTest, TheirWeightsAreSharedAndNotTheTargets) {
  const Drafters drafters = make(every_file_);
  size_t shared = 0;
  for (const auto memory : communicator_.shared) shared += memory.size();
  const int64_t weights = drafters.find(DrafterKind::model)->weight_bytes() +
                          drafters.find(DrafterKind::head)->weight_bytes();
  EXPECT_GT(weights, 0);
  EXPECT_GE(static_cast<int64_t>(shared), weights);

  communicator_.shared.clear();
  const Transformer target(directory_, *backend_, communicator_, 16, 64, {});
  make({});
  EXPECT_TRUE(communicator_.shared.empty());
}

TEST_F(DraftersTest, TellWhichStatesAHeadTakes) {
  EXPECT_EQ(make(every_file_).aux_layers(), (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(make({.head = test_checkpoint("tiny-plain-head")}).aux_layers().empty());
  EXPECT_TRUE(make({}).aux_layers().empty());
}

// What q is made of differs between a head that is whole and one that is split, and so may what an
// answer by `rejection` repeats.
TEST_F(DraftersTest, TheHashTellsHowAHeadIsSplit) {
  const DrafterFiles head{.head = every_file_.head};
  const auto made = [&](Communicator& communicator) {
    const std::unique_ptr<Backend> backend = make_cpu_backend();
    return Drafters(head, {directory_, hash_, config_, tokenizer_}, {32, 4, 64}, *backend,
                    communicator, {})
        .hash();
  };
  const std::string whole = made(communicator_);
  run_thread_ranks(2, [&](Communicator& communicator) { EXPECT_NE(made(communicator), whole); });
}

}  // namespace
}  // namespace outrider
