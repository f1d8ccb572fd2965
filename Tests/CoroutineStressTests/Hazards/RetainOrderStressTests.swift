import Testing

@testable import Coroutine

/// Hazard 16: the optimizer must not move a retain behind the store that gives up a lock.
@Suite("Stress: order of retains", .timeLimit(.minutes(10)))
struct RetainOrderStressTests {
  private final class Value: Sendable {
    let number: Int
    init(_ number: Int) { self.number = number }
  }

  private final class Cell: @unchecked Sendable {
    // Sound because `value` is read and written under the lock.
    private let lock = SpinLock()
    @exclusivity(unchecked) private var value = Value(0)

    /// Not inlined: in a function of its own, nothing stands between the store of the unlock and the return.
    @inline(never)
    var current: Value {
      lock.lock()
      let value = value
      lock.unlock()
      return value
    }

    @inline(never)
    func replace(_ new: Value) {
      lock.lock()
      let old = value
      value = new
      lock.unlock()
      withExtendedLifetime(old) {}
    }
  }

  /// Only an optimised build can fail: the program ends with a signal, or a number is wrong.
  @Test func `an object that is read under a lock outlives the thread that replaces it`() async throws {
    let rounds = Stress().rounds(1_000_000)
    let cell = Cell()
    let wrong = Census()
    try await onThreads(3) { thread in
      if thread == 0 {
        for number in 1...rounds { cell.replace(Value(number)) }
      } else {
        var last = 0
        for _ in 1...rounds {
          let number = cell.current.number
          if number < last || number > rounds { wrong.change() }
          last = number
        }
      }
    }
    #expect(wrong.now == 0)
    #expect(cell.current.number == rounds)
  }
}
