#pragma once

#include <cstddef>
#include <functional>

#include "epp/kv_index/block_index.hpp"
#include "epp/selection/kv_event_subscriptions.hpp"

namespace handoff::epp {

// Subscriptions over ZMQ: a KvFeedPool with `threads` threads per index, started with its first subscription.
KvSubscriptionsFactory kv_feed_subscriptions(std::size_t threads, std::function<SteadyTime()> clock);

}  // namespace handoff::epp
