// What users of offloaders reported, as C++ programs meet it: threads, and addresses that stay. "Row" is the number in
// docs/reports.md; each test begins with the report and what is expected.
#include <gmock/gmock.h>

#include <atomic>

#include "engine/offload_reports.h"

namespace noria {
namespace {

// diffusers#3672: concurrent calls on one pipeline give index errors and black images. Each thread gets its own bits.
TEST_P(OffloadReports, Row155TwoThreadsCallOneModel) {
  std::array<at::Tensor, 2> const x{input({3, kWidth}), input({4, kWidth}).mul(2)};
  std::array<at::Tensor, 2> wanted;
  auto resident = make<Stack>();
  resident->to(*device_);
  for (std::size_t i = 0; i < x.size(); ++i) {
    wanted[i] = resident->forward(x[i]).cpu();
  }
  for (OffloadOptions const& how : settings<Stack>()) {
    SCOPED_TRACE(described(how));
    auto net = make<Stack>();
    Offload const offload(net, how);
    std::array<int, 2> right{};
    on_threads(2, [&](std::size_t i) {
      for (int pass = 0; pass < 4 * kPasses; ++pass) {
        right[i] += net->forward(x[i], parts(offload)).cpu().equal(wanted[i]) ? 1 : 0;
      }
    });
    EXPECT_EQ(right, (std::array{4 * kPasses, 4 * kPasses}));
    EXPECT_LE(offload.status().peak_device_bytes, how.budget->bytes);
  }
}

struct UnevenImpl : StackImpl {
  UnevenImpl() : StackImpl({40, 8, 72, 24, 56, 16}) {}
};
TORCH_MODULE(Uneven);

Bytes group_bytes(Uneven const& net, std::size_t block) {
  Bytes bytes = 0;
  for (at::Tensor const& parameter : net->block(block)->parameters()) {
    bytes += align_up(parameter.nbytes(), 256);
  }
  return align_up(bytes, 512);
}

Bytes largest_bytes(Uneven const& net) {
  Bytes largest = 0;
  for (std::size_t i = 0; i < net->blocks->size(); ++i) {
    largest = std::max(largest, group_bytes(net, i));
  }
  return largest;
}

class AddressReports : public OffloadReports {
 protected:
  /// Calls a model beside the scope of one of its blocks. Empty when all calls were right, else the budget that the
  /// first one to find no room named.
  std::optional<Bytes> run_beside(std::size_t held, Bytes budget, at::Tensor const& x, at::Tensor const& wanted) const {
    auto net = make<Uneven>();
    Offload const offload(net, options(Granularity::kBlock, budget));
    std::optional<Bytes> named;
    auto const call = [&] { EXPECT_TRUE(net->forward(x, parts(offload)).cpu().equal(wanted)); };
    call();
    {
      auto const use = offload.use(net->block(held));
      at::Tensor const weight = net->block(held)->up->weight;
      void const* const address = weight.const_data_ptr();
      at::Tensor const by_address = at_address_of(weight);
      at::Tensor const value = by_address.cpu().clone();
      for (int pass = 0; pass < kPasses && !named; ++pass) {
        if (std::string const message = message_of(call); message != "nothing was thrown") {
          constexpr std::string_view kAdvice = "Give a budget of at least ";
          std::size_t const at = message.find('(', message.find(kAdvice));
          EXPECT_THAT(message, HasSubstr("there is no room for"));
          named = std::stoull(message.substr(at + 1));
        }
        EXPECT_EQ(weight.const_data_ptr(), address);
        EXPECT_TRUE(by_address.cpu().equal(value));
      }
    }
    call();
    return named;
  }
};

// What offload.h promises of a scope: a raw pointer taken inside is good until it ends, while other blocks come and go.
// A call for which there is no room beside it is told so, and with the budget that it names there is.
TEST_P(AddressReports, AnAddressIsGoodUntilItsScopeEnds) {
  at::Tensor const x = input({3, kWidth});
  auto resident = make<Uneven>();
  resident->to(*device_);
  at::Tensor const wanted = resident->forward(x).cpu();
  auto const sizes = make<Uneven>();
  Bytes const smallest = smallest_budget(*sizes, Granularity::kBlock);
  Bytes const all = Offload(sizes, options(Granularity::kBlock, 1_GiB)).status().weights_bytes;
  for (std::size_t held = 0; held < resident->blocks->size(); ++held) {
    for (Bytes budget = smallest; budget < all; budget += 2_KiB) {
      SCOPED_TRACE("block " + std::to_string(held) + ", " + std::to_string(budget) + " bytes");
      if (std::optional<Bytes> const enough = run_beside(held, budget, x, wanted)) {
        EXPECT_GT(*enough, budget);
        EXPECT_LE(*enough, group_bytes(sizes, held) + 2 * largest_bytes(sizes));
        EXPECT_EQ(run_beside(held, *enough, x, wanted), std::nullopt);
      }
    }
  }
}

// The backward of a device runs on a thread of its own, which must not wait for a scope of the thread that waits for
// it.
TEST_P(OffloadReports, ABackwardThatFindsNoRoomBesideAScopeSaysSo) {
  c10::AutoGradMode const with_grad(true);
  auto net = make<Stack>();
  Offload const offload(net, options(Granularity::kBlock, smallest_budget(*net, Granularity::kBlock)));
  at::Tensor const loss = net->block(1)->forward(input({3, kWidth})).sum();
  {
    auto const use = offload.use(net->block(0));
    EXPECT_THAT(message_of([&] { loss.backward({}, /*keep_graph=*/true); }), HasSubstr("there is no room for"));
  }
  loss.backward();
  auto resident = make<Stack>();
  resident->to(*device_);
  resident->block(1)->forward(input({3, kWidth})).sum().backward();
  EXPECT_TRUE(net->block(1)->up->weight.grad().cpu().equal(resident->block(1)->up->weight.grad().cpu()));
}

// An operator that finds no room raises, whatever other threads bring in and send away meanwhile.
TEST_P(OffloadReports, WhatFindsNoRoomRaisesWhileAnotherThreadLoads) {
  at::Tensor const x = input({3, kWidth});
  auto resident = make<Uneven>();
  resident->to(*device_);
  at::Tensor const wanted = resident->forward(x).cpu();
  Bytes const smallest = smallest_budget(*make<Uneven>(), Granularity::kBlock);
  for (Bytes budget = smallest; budget < 3 * smallest; budget += 2_KiB) {
    auto net = make<Uneven>();
    Offload const offload(net, options(Granularity::kBlock, budget));
    std::atomic<bool> done = false;
    auto const call = [&] {
      std::string const message = message_of([&] { EXPECT_TRUE(net->forward(x).cpu().equal(wanted)); });
      if (message != "nothing was thrown") {
        EXPECT_THAT(message, StartsWith("EvictedWeightError: "));
        EXPECT_THAT(message, HasSubstr("there is no room for"));
      }
    };
    on_threads(2, [&](std::size_t thread) {
      if (thread == 1) {
        do {
          call();
        } while (!done);
        return;
      }
      for (std::size_t held = 0; held < net->blocks->size(); ++held) {
        try {
          auto const use = offload.use(net->block(held));
          for (int i = 0; i < 5; ++i) {
            call();
          }
        } catch (BudgetError const& error) {
          EXPECT_GT(error.smallest_bytes(), budget);
        }
      }
      done = true;
    });
  }
}

// The same while another thread calls the model; what finds no room beside the scope waits for its end.
TEST_P(OffloadReports, AnAddressIsGoodWhileAnotherThreadUsesTheModel) {
  constexpr int kLooks = 50;
  at::Tensor const x = input({3, kWidth});
  auto resident = make<Uneven>();
  resident->to(*device_);
  at::Tensor const wanted = resident->forward(x).cpu();
  for (OffloadOptions const& how : scope_settings<Uneven>()) {
    SCOPED_TRACE(described(how));
    auto net = make<Uneven>();
    Offload const offload(net, how);
    std::atomic<bool> done = false;
    int calls = 0;
    int right = 0;
    on_threads(2, [&](std::size_t thread) {
      if (thread == 1) {
        do {
          right += net->forward(x, parts(offload)).cpu().equal(wanted) ? 1 : 0;
          ++calls;
        } while (!done);
        return;
      }
      for (std::size_t held = 0; held < net->blocks->size(); ++held) {
        auto const use = offload.use(net->block(held));
        at::Tensor const weight = net->block(held)->up->weight;
        void const* const address = weight.const_data_ptr();
        at::Tensor const by_address = at_address_of(weight);
        for (int look = 0; look < kLooks; ++look) {
          EXPECT_TRUE(by_address.cpu().equal(resident->block(held)->up->weight.cpu()));
          EXPECT_EQ(weight.const_data_ptr(), address);
        }
      }
      done = true;
    });
    EXPECT_EQ(right, calls);
    EXPECT_GT(calls, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, AddressReports, in_every_mode(), mode_name);

}  // namespace
}  // namespace noria
