#if Demo
/// How many of what.
struct OrdersPlan: Sendable {
  /// The number of coroutines that place orders.
  static let doors = 4

  var orders = 1_000
  /// The most orders in a second.
  var rate = 80
  var workers = 4
  var kills = 20

  /// How long each coroutine waits between two orders.
  var pause: Duration { .seconds(1) * Self.doors / rate }

  /// How many kills each order is followed by: at random.
  func killsAfterOrders() -> [Int: Int] {
    var counts: [Int: Int] = [:]
    for _ in 0..<kills { counts[Int.random(in: 0..<orders), default: 0] += 1 }
    return counts
  }
}
#endif
