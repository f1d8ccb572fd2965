#if Demo
/// Checks, for one receiver, that each message of each sender comes once and in order.
///
/// The numbers of a sender's messages begin with 0. For each sender there is:
///   - `next`: the number that comes next, if nothing is lost or late;
///   - `missing`: the numbers below `next` that have not come. They are late, or lost.
struct DeliveryCheck: Sendable {
  private struct Sender {
    var next = 0
    var missing: Set<Int> = []
  }

  private var senders: [Int: Sender] = [:]
  private(set) var received = 0
  private(set) var duplicated = 0
  /// The messages that came after a later one of the same sender.
  private(set) var reordered = 0

  mutating func take(_ number: Int, from sender: Int) {
    var state = senders[sender, default: Sender()]
    defer { senders[sender] = state }
    if number >= state.next {
      if number > state.next { state.missing.formUnion(state.next..<number) }
      state.next = number + 1
    } else if state.missing.remove(number) != nil {
      reordered += 1
    } else {
      duplicated += 1
      return
    }
    received += 1
  }

  /// How many of a sender's `sent` messages have not come.
  func lost(of sent: Int, from sender: Int) -> Int {
    let state = senders[sender, default: Sender()]
    return state.missing.count + max(0, sent - state.next)
  }
}
#endif
