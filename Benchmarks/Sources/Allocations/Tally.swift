/// A number that coroutines of one serial queue add to; its own allocation is made with it, never while counting.
final class Tally: @unchecked Sendable {
  // Sound because all coroutines that use one run on one serial queue.
  private(set) var value = 0
  func add(_ number: Int) { value += number }
}
