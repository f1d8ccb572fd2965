import Coroutine
import Testing

/// The work of a handler whose own link is cancelled or settled, before the handler runs or meanwhile.
@Suite("Promise: cancelling and handlers", .timeLimit(.minutes(10)))
struct HandlerCancellingTests {
  private typealias Holder = Locked<Promise<Int>?>

  /// Work that opens the gate when it is cancelled.
  private static func work(_ cancelled: Gate) -> (Promise<Int>, Locked<Resumer<Int>?>) {
    let kept = Locked<Resumer<Int>?>(nil)
    return (Promise(onCancel: { cancelled.open() }, { kept.current = $0 }), kept)
  }

  @Test func `a promise returned by a handler is cancelled if its link was cancelled while the handler ran`()
    async throws
  {
    let (cancelled, holder, upstream) = (Gate(), Holder(nil), Promise<Int>())
    let (inner, kept) = Self.work(cancelled)
    let link = upstream.then { _ -> Promise<Int> in
      holder.current?.cancel()
      return inner
    }
    holder.current = link
    upstream.fulfill(1)
    try await onCoroutine { try cancelled.pass() }
    #expect(inner.error is CancellationError && link.error is CancellationError)
    withExtendedLifetime(kept) {}
  }

  @Test func `a promise returned by a handler continues if it has another waiter`() async throws {
    let (holder, upstream, inner) = (Holder(nil), Promise<Int>(), Promise<Int>())
    let other = inner.then { $0 + 1 }
    try await onSerialQueue {
      let link = upstream.then { _ -> Promise<Int> in
        holder.current?.cancel()
        return inner
      }
      holder.current = link
      // Queued behind the link's handler, so the link has handled the returned promise.
      let after = upstream.then { $0 }
      upstream.fulfill(1)
      _ = try co_await(after)
      #expect(inner.isPending && link.isRejected)
      inner.fulfill(1)
      #expect(try co_await(other) == 2)
    }
  }

  @Test(.inWorlds) func `a retry that is cancelled during an attempt cancels the attempt and makes no more`() throws {
    let (cancelled, holder, trace) = (Gate(), Holder(nil), Trace())
    let (inner, kept) = Self.work(cancelled)
    try onWorldQueue {
      let retried = Promise<Int>.retry(attempts: 5) { number in
        trace("\(number)")
        if number < 3 { return .failure(Oops("attempt")) }
        holder.current?.cancel()
        return inner
      }
      holder.current = retried
      try cancelled.pass()
      #expect(retried.error is CancellationError)
    }
    #expect(trace.all == ["1", "2", "3"])
    withExtendedLifetime(kept) {}
  }

  @Test func `a failure whose handler has not run yet survives a direct reject`() async throws {
    for _ in 0..<300 {
      let (seen, settled) = (Promise<String>(), Gate())
      var upstream: Promise<Int>? = Promise<Int>()
      let link = upstream!.recover { error -> Int in
        seen.fulfill("\(error)")
        return 0
      }
      _ = link.observe { _ in
        settled.open()
        // A handler that comes too late does not run.
        seen.fulfill("late")
      }
      upstream!.reject(Oops("first"))
      upstream = nil
      link.reject(Oops("second"))
      let what = try await onCoroutine {
        try settled.pass()
        return try co_await(seen)
      }
      #expect(["late", "\(Oops("first"))", "\(Oops("second"))"].contains(what))
    }
  }

  @Test func `a handler that will not run is released when its link settles, by cancellation or directly`() {
    for byHand in [false, true] {
      let (upstream, released) = (Promise<Int>(), Flag())
      let link = Self.link(upstream, Tracked { released.raise() })
      if byHand {
        link.fulfill(2)
      } else {
        link.then { $0 }.then { $0 }.cancel()
      }
      #expect(link.isSettled && released.isRaised)
      withExtendedLifetime((link, upstream)) {}
    }
  }

  private static func link(_ upstream: Promise<Int>, _ held: Tracked) -> Promise<Int> {
    upstream.then { value -> Int in
      held.use()
      return value
    }
  }

  @Test func `an onCancel that suspends does not block other promises`() async throws {
    let (gate, kept) = (Gate(), Locked<Resumer<Int>?>(nil))
    let passed = Flag()
    try await onSerialQueue {
      let winner = Promise<Int>()
      let loser = Promise<Int>(
        onCancel: {
          try? gate.pass()
          passed.raise()
        },
        { kept.current = $0 }
      )
      let race = Promise.race([winner, loser], losers: .cancelled)
      let other = co_launch {
        let promise = Promise<Int>()
        let end = promise.asVoid()
        promise.fulfill(1)
        #expect(end.isFulfilled && !passed.isRaised)
        gate.open()
      }
      winner.fulfill(1)
      #expect(passed.isRaised)
      try other.join()
      #expect(try co_await(race) == 1)
    }
  }
}
