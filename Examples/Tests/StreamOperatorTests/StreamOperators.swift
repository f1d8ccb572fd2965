import AsyncAlgorithms
import Coroutine

// Coroutines that consume operators of swift-async-algorithms on channels. The guide's page StreamOperators shows them.

/// Searches for what was typed last, when nothing has been typed for a while.
func searchWhenQuiet(_ typed: Channel<String>, _ search: (String) throws -> Void) throws {
  let quiet = co_sequence(typed.debounce(for: .milliseconds(300), clock: CoroutineClock()))
  while case .yielded(let text) = try quiet.step() { try search(text) }
}

/// Shows the newest price together with the newest rate, after each change of one of them.
func showTotals(_ prices: Watch<Int>, _ rates: Watch<Int>, _ show: (Int) throws -> Void) throws {
  let pairs = co_sequence(combineLatest(prices.subscribe(), rates.subscribe()))
  while case .yielded((let price, let rate)) = try pairs.step() { try show(price * rate) }
}

/// Handles the orders of two shops as they come, each shop's in its order.
func handleOrders(_ one: Channel<Int>, _ other: Channel<Int>, _ handle: (Int) throws -> Void) throws {
  let orders = co_sequence(merge(one, other))
  while case .yielded(let order) = try orders.step() { try handle(order) }
}
