// PagePool: which KV pages belong to which sequence, and which verified pages can be used again by
// a prompt that begins alike. Rank 0 only and host data only: page ids travel to the ranks in
// plans.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/digest.h"
#include "kernels/attention_types.h"

namespace outrider {

// One sequence's pages, in order of position. Position p lies in pages[p / kPageTokens].
struct PageTable {
  std::vector<int32_t> pages;
  int64_t num_published = 0;  // pages, from the front, that are full, verified and hashed
  Digest128 chain{};          // of the tokens of those pages, with the pool's and tenant's salt

  int64_t capacity() const { return static_cast<int64_t>(pages.size()) * kPageTokens; }
};

class PagePool {
 public:
  explicit PagePool(int64_t num_pages);

  static int64_t pages_for(int64_t positions) {
    return (positions + kPageTokens - 1) / kPageTokens;
  }

  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()); }
  // Pages that nobody uses: never written, or kept only because a prompt may ask for them again.
  int64_t num_available() const;
  int64_t num_used() const { return num_pages() - num_available(); }  // by at least one sequence

  // Gives an empty table the published pages that begin as `tokens` do, at most
  // (tokens.size() - 1) / kPageTokens of them: the last token's row has to be computed. Returns the
  // positions found. `salt` keeps tenants (and requests that must not share) apart. Every table
  // begins with this call, if only with no tokens: what it publishes later is under this salt.
  int64_t take_prefix(PageTable& table, std::span<const int32_t> tokens, uint64_t salt);
  // How many pages take_prefix would find, and how many of those are in use by others (the rest
  // counts as available).
  struct Found {
    int64_t pages = 0;
    int64_t in_use = 0;
  };
  Found find_prefix(std::span<const int32_t> tokens, uint64_t salt) const;

  // Room for positions [0, length). False, and nothing changed, where pages run out. Pages that
  // only the prefix cache holds are taken, least recently used first.
  bool reserve(PageTable& table, int64_t length);
  // Whole pages behind position `length` go back. Never below what is published.
  void truncate(PageTable& table, int64_t length);
  // Positions [0, verified) hold `tokens` for good: their full pages become findable. A page of
  // equal content that is findable already stays the one that is found.
  void publish(PageTable& table, std::span<const int32_t> tokens, int64_t verified);
  // The sequence is over, or preempted: its published pages stay findable until they are needed.
  void release(PageTable& table);
  // What the sequence's pages hold is wrong: none of them is found from now on.
  void forget(const PageTable& table);

 private:
  struct Page {
    int32_t num_users = 0;  // tables that hold it
    bool findable = false;
    Digest128 chain;                    // where findable: its key in by_chain_
    std::list<int32_t>::iterator idle;  // where findable and without users: its place in idle_
  };
  struct ChainHash {
    size_t operator()(const Digest128& chain) const { return chain.low; }
  };
  using Findable = std::unordered_map<Digest128, int32_t, ChainHash>;

  // The page behind `chain` that holds the index-th kPageTokens of `tokens`; end() where there is
  // none, or where it would hold the last token.
  Findable::const_iterator find_next(std::span<const int32_t> tokens, int64_t index,
                                     const Digest128& chain) const;
  int32_t take_page();
  void make_unfindable(Page& page);
  void drop_user(int32_t page);

  std::vector<Page> pages_;
  std::vector<int32_t> blank_;  // neither used nor findable; a stack
  std::list<int32_t> idle_;     // findable without users, least recently used first
  Findable by_chain_;
};

}  // namespace outrider
