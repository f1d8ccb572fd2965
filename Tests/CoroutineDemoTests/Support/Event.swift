#if Demo
@testable import CoroutineDemo

/// An event that happens once, with a value; any number of tests may wait for it, before or after.
final class Event<Value: Sendable>: Sendable {
  private struct State: Sendable {
    var value: Value?
    var waiters: [CheckedContinuation<Value, Never>] = []
  }

  private let state = Locked(State())

  func happen(_ value: Value) {
    let waiters = state.withLock { state in
      state.value = value
      defer { state.waiters = [] }
      return state.waiters
    }
    for waiter in waiters { waiter.resume(returning: value) }
  }

  var value: Value {
    get async {
      await withCheckedContinuation { waiter in
        let value: Value? = state.withLock { state in
          if state.value == nil { state.waiters.append(waiter) }
          return state.value
        }
        if let value { waiter.resume(returning: value) }
      }
    }
  }
}
#endif
