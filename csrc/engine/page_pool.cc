#include "engine/page_pool.h"

#include <numeric>

#include "core/error.h"

namespace outrider {

namespace {

Digest128 root_of(uint64_t salt) { return digest128(&salt, sizeof salt); }

// The chain up to and with the index-th page of `tokens`.
Digest128 extended(const Digest128& chain, std::span<const int32_t> tokens, int64_t index) {
  const auto page = tokens.subspan(index * kPageTokens, kPageTokens);
  return digest128(page.data(), page.size_bytes(), chain);
}

}  // namespace

PagePool::PagePool(int64_t num_pages) : pages_(num_pages), blank_(num_pages) {
  std::iota(blank_.rbegin(), blank_.rend(), 0);  // page 0 is taken first
}

int64_t PagePool::num_available() const {
  return static_cast<int64_t>(blank_.size() + idle_.size());
}

PagePool::Findable::const_iterator PagePool::find_next(std::span<const int32_t> tokens,
                                                       int64_t index,
                                                       const Digest128& chain) const {
  if ((index + 1) * kPageTokens >= static_cast<int64_t>(tokens.size())) return by_chain_.end();
  return by_chain_.find(extended(chain, tokens, index));
}

int64_t PagePool::take_prefix(PageTable& table, std::span<const int32_t> tokens, uint64_t salt) {
  CHECK(table.pages.empty() && table.num_published == 0);
  table.chain = root_of(salt);
  while (true) {
    const auto next = find_next(tokens, table.num_published, table.chain);
    if (next == by_chain_.end()) return table.num_published * kPageTokens;
    Page& page = pages_[next->second];
    if (page.num_users++ == 0) idle_.erase(page.idle);
    table.pages.push_back(next->second);
    table.chain = page.chain;
    ++table.num_published;
  }
}

PagePool::Found PagePool::find_prefix(std::span<const int32_t> tokens, uint64_t salt) const {
  Found found;
  Digest128 chain = root_of(salt);
  while (true) {
    const auto next = find_next(tokens, found.pages, chain);
    if (next == by_chain_.end()) return found;
    ++found.pages;
    if (pages_[next->second].num_users > 0) ++found.in_use;
    chain = next->first;
  }
}

bool PagePool::reserve(PageTable& table, int64_t length) {
  const int64_t missing = pages_for(length) - static_cast<int64_t>(table.pages.size());
  if (missing > num_available()) return false;
  for (int64_t i = 0; i < missing; ++i) table.pages.push_back(take_page());
  return true;
}

int32_t PagePool::take_page() {
  int32_t id;
  if (!blank_.empty()) {
    id = blank_.back();
    blank_.pop_back();
  } else {
    id = idle_.front();
    idle_.pop_front();
    make_unfindable(pages_[id]);
  }
  pages_[id].num_users = 1;
  return id;
}

void PagePool::make_unfindable(Page& page) {
  by_chain_.erase(page.chain);
  page.findable = false;
}

void PagePool::drop_user(int32_t id) {
  Page& page = pages_[id];
  CHECK(page.num_users > 0);
  if (--page.num_users > 0) return;
  if (page.findable) {
    page.idle = idle_.insert(idle_.end(), id);
  } else {
    blank_.push_back(id);
  }
}

void PagePool::truncate(PageTable& table, int64_t length) {
  CHECK(length >= table.num_published * kPageTokens);
  while (static_cast<int64_t>(table.pages.size()) > pages_for(length)) {
    drop_user(table.pages.back());
    table.pages.pop_back();
  }
}

void PagePool::publish(PageTable& table, std::span<const int32_t> tokens, int64_t verified) {
  CHECK(verified <= table.capacity() && verified <= static_cast<int64_t>(tokens.size()));
  for (; table.num_published < verified / kPageTokens; ++table.num_published) {
    table.chain = extended(table.chain, tokens, table.num_published);
    const int32_t id = table.pages[table.num_published];
    if (!by_chain_.try_emplace(table.chain, id).second) continue;
    pages_[id].findable = true;
    pages_[id].chain = table.chain;
  }
}

void PagePool::release(PageTable& table) {
  // From the back: the beginning of a prompt, which more prompts share, is kept longest.
  for (; !table.pages.empty(); table.pages.pop_back()) drop_user(table.pages.back());
  table = {};
}

void PagePool::forget(const PageTable& table) {
  for (const int32_t id : table.pages) {
    if (pages_[id].findable) make_unfindable(pages_[id]);
  }
}

}  // namespace outrider
