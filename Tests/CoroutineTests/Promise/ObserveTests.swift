import Coroutine
import Dispatch
import Testing

/// The rules of a callback of `observe`: it runs in the settling call, after all handler-less dependents of the promise
/// are settled, and it may attach, settle and wait.
@Suite("Promise: observe", .timeLimit(.minutes(10)))
struct ObserveTests {
  @Test
  func `a callback finds all handler-less dependents of its promise settled, attached before or after it`() {
    let promise = Promise<Int>()
    let before = promise.asVoid().asVoid().asVoid()
    let after = Locked<Promise<Void>?>(nil)
    let seen = Trace()
    _ = promise.observe { _ in seen("\(before.isSettled) \(after.current!.isSettled)") }
    after.current = Promise.all([promise, .value(1)]).asVoid().asVoid()
    promise.fulfill(1)
    #expect(seen.all == ["true true"])
  }

  @Test func `a promise settled by a callback has reached all its waiters when the settling call returns`() {
    let (promise, other) = (Promise<Int>(), Promise<Int>())
    let end = Promise.race([other.asVoid().asVoid()])
    let seen = Trace()
    _ = other.observe { _ in seen("other") }
    _ = promise.observe { _ in
      other.fulfill(2)
      seen("after, \(end.isSettled)")
    }
    promise.fulfill(1)
    #expect(seen.all == ["other", "after, true"])
  }

  @Test func `a promise that a callback derives from its own promise is settled at once`() {
    let promise = Promise<Int>()
    let seen = Trace()
    _ = promise.observe { _ in seen("\(promise.asVoid().asVoid().isSettled)") }
    _ = promise.observe { _ in seen("second") }
    promise.fulfill(1)
    #expect(seen.all == ["true", "second"])
  }

  @Test func `callbacks run in order; one added by a callback runs after the others, a late one at once`() {
    let promise = Promise<Int>()
    let seen = Trace()
    _ = promise.observe { _ in
      seen("first")
      _ = promise.observe { _ in seen("added") }
    }
    _ = promise.observe { seen("second \(outcome($0))") }
    promise.observe { _ in seen("cancelled") }.cancel()
    promise.fulfill(1)
    _ = promise.observe { _ in seen("late") }
    #expect(seen.all == ["first", "second 1", "added", "late"])
  }

  @Test func `a callback added by another thread during the last call does not overtake it`() async throws {
    let seen = try await onOwnThread {
      let promise = Promise<Int>()
      let (seen, attached) = (Trace(), DispatchSemaphore(value: 0))
      _ = promise.observe { _ in
        startThread {
          _ = promise.observe { _ in seen("added") }
          attached.signal()
        }
        attached.wait()
        seen("first")
      }
      promise.fulfill(1)
      return seen.all
    }
    #expect(seen == ["first", "added"])
  }

  @Test func `a callback that an earlier callback removes is not called`() {
    let promise = Promise<Int>()
    let (seen, second) = (Trace(), Locked<AwaitableObservation?>(nil))
    _ = promise.observe { _ in
      seen("first")
      second.current?.cancel()
    }
    second.current = promise.observe { _ in seen("second") }
    promise.fulfill(1)
    #expect(seen.all == ["first"])
    second.current = nil
  }

  @Test func `a callback may block on a promise that it has settled`() async throws {
    let seen = try await onOwnThread {
      let (promise, other) = (Promise<Int>(), Promise<Int>())
      let timed = other.timeout(.seconds(60))
      let seen = Trace()
      _ = promise.observe { _ in
        other.fulfill(2)
        seen(outcome { try timed.blockingWait() })
        seen(outcome { try promise.timeout(.seconds(60)).blockingWait() })
      }
      promise.fulfill(1)
      return seen.all
    }
    #expect(seen == ["2", "1"])
  }

  @Test func `a callback that suspends its coroutine does not block other promises`() async throws {
    let seen = try await onSerialQueue {
      let (promise, other) = (Promise<Int>(), Promise<Int>())
      let end = other.asVoid().asVoid()
      let seen = Trace()
      _ = promise.observe { _ in seen(outcome { try co_timeout(.seconds(60)) { try co_await(end) } }) }
      let job = co_launch { other.fulfill(2) }
      promise.fulfill(1)
      seen("settled")
      _ = try job.join()
      return seen.all
    }
    #expect(seen == ["()", "settled"])
  }

  @Test
  func `a callback may wait in every way for its own promise, even before later waiters are notified`() async throws {
    let seen = try await onSerialQueue {
      let promise = Promise<Int>()
      let (passed, sure) = (promise.recover { _ in 0 }, promise.recovered { _ in 0 })
      let seen = Trace()
      _ = promise.observe { _ in
        seen(outcome { try co_timeout(.seconds(60)) { try co_all([promise, passed]) } })
        seen(outcome { try co_timeout(.seconds(60)) { try co_race([sure]) } })
        seen(outcome { try co_timeout(.seconds(60)) { try co_select { sure.onAwait { try $0.get() } } } })
      }
      for end in [promise, passed, sure.promise] { _ = end.observe { _ in seen("told") } }
      promise.fulfill(1)
      return seen.all
    }
    #expect(seen == ["[1, 1]", "1", "1", "told", "told", "told"])
  }

  @Test func `an abandoned promise notifies its callbacks and waiters`() {
    let seen = Trace()
    Self.abandon { promise in
      let end = promise.asVoid().asVoid()
      _ = promise.observe { seen("\(outcome($0)) \(end.isSettled)") }
      end.ignore()
    }
    #expect(seen.all == ["abandoned true"])
  }

  private static func abandon(_ body: (Promise<Int>) -> Void) { body(Promise()) }
}
