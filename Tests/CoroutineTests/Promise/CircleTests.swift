import Coroutine
import Dispatch
import Testing

/// Every way in which one promise can wait for another, closed to a cycle.
///
/// The promise that closes it rejects with `cycle`, and through it every other one of the cycle. None hangs.
@Suite("Promise: cycles", .timeLimit(.minutes(10)))
struct CircleTests {
  /// Makes `head` follow the promise that `derive` derives from it.
  private func close(_ sentence: Comment, _ derive: (Promise<Int>) -> Promise<Int>) {
    let head = Promise<Int>()
    let tail = derive(head)
    #expect(tail.isPending, sentence)
    head.follow(tail)
    #expect(head.error.map { name(of: $0) } == "cycle", sentence)
    tail.ignore()
  }

  @Test func `through every kind of derived promise`() {
    close("then") { $0.then { $0 } }
    close("then with a promise") { $0.then { .value($0) } }
    close("then with a resumer") { $0.then { (value: Int, done: Resumer<Int>) in done.resume(value) } }
    close("thenResult") { $0.thenResult { try $0.get() } }
    close("thenResult with a promise") {
      $0.thenResult { (result: Result<Int, any Error>) in .value(try result.get()) }
    }
    close("compactMap, validate, get") { $0.compactMap { $0 }.validate { _ in true }.get { _ in } }
    close("asVoid") { $0.asVoid().then { 1 } }
    close("recover") { $0.recover { _ -> Int in 1 } }
    close("recover with a promise") { $0.recover { _ -> Promise<Int> in .value(1) } }
    close("rescue") { $0.rescue { (_: Oops) -> Int in 1 } }
    close("rescue with a promise") { $0.rescue { (_: Oops) -> Promise<Int> in .value(1) } }
    close("tap, ensure") { $0.tap { _ in }.ensure {} }
    close("ensureThen") { $0.ensureThen { Promise<Void>() } }
    close("recovered") { $0.recovered { _ in 1 }.then { $0 }.promise }
    close("delay") { $0.delay(.seconds(3600)) }
    close("timeout") { $0.timeout(.seconds(3600)) }
    close("follow") {
      let follower = Promise<Int>()
      follower.follow($0)
      return follower
    }
    close("a promise with progress") {
      let promise = ProgressPromise<Int>()
      promise.follow($0)
      return promise
    }
  }

  @Test func `through every combinator`() {
    let other = Promise<Int>()
    close("all") { Promise.all([other, $0]).then { $0[0] } }
    close("all of a dictionary") { Promise.all(["a": other, "b": $0]).then { $0.count } }
    close("all of named") { Promise.all(named: ["a": other, "b": $0]).then { $0.count } }
    close("all of types") { Promise.all(other, $0, other.asVoid()).then { $0.0 } }
    close("allSettled") { Promise.allSettled([other, $0]).then { $0.count } }
    close("any") { Promise.any([other, $0]) }
    close("race") { Promise.race([other, $0]) }
    close("&&&") { (other &&& $0).then { $0.0 } }
    close("&&& with a value") { (5 &&& $0).then { $0.0 } }
    close("|||") { other ||| $0 }
    close("||| of two types") { (other.then { "\($0)" } ||| $0).then { _ in 1 } }
    close("||| with a value") { $0 ||| 5 }
    close("all of guarantees") { head in
      Guarantee.all([head.recovered { _ in 1 }]).then { $0.count }.promise
    }
    other.cancel()
  }

  // The coroutines of runs wait for the promises, which no search sees. What hangs is shown, and can be given up.
  @Test(.inWorlds) func `through a bounded all or a retry they wait until they are cancelled, and a dump shows it`()
    throws
  {
    typealias Make = (Promise<Int>, Locked<Promise<Int>?>) -> Promise<Int>
    let kinds: [(String, Make)] = [
      (
        "Promise.all(of:concurrently:)",
        { first, box in
          Promise<Int>.all(of: 0..<2, concurrently: 1) { $0 == 0 ? first : box.current!.then { $0 } }.then { $0[0] }
        }
      ),
      (
        "Promise.retry",
        { first, box in
          Promise<Int>.retry(attempts: 3) { $0 == 1 ? first.then { _ in throw Oops() } : box.current!.then { $0 } }
        }
      ),
    ]
    for (name, make) in kinds {
      let (first, box) = (Promise<Int>(), Locked<Promise<Int>?>(nil))
      let result = make(first, box)
      box.current = result
      first.fulfill(0)
      #expect(outcome { try co_await(result.uncancelled.timeout(.seconds(1))) } == "TimeoutError", "\(name)")
      #expect(CoroutineRuntime.dump().contains(name))
      result.cancel()
      #expect(outcome { try co_await(result) } == "CancellationError", "\(name)")
      box.current = nil
    }
  }

  // Of all kinds one has a timer, whose end is awaited by async code.
  @Test(.tags(.realClock)) func `handlers that return what waits for their own link`() async {
    typealias Make = (Promise<Int>, Locked<Promise<Int>?>) -> Promise<Int>
    let kinds: [(String, Make)] = [
      ("then", { start, box in start.then { _ in box.current! } }),
      ("then after a pause", { start, box in start.delay(.milliseconds(1)).then { _ in box.current! } }),
      ("thenResult", { start, box in start.thenResult { _ in box.current! } }),
      ("recover", { start, box in start.then { _ -> Int in throw Oops() }.recover { _ in box.current! } }),
      ("rescue", { start, box in start.then { _ -> Int in throw Oops() }.rescue { (_: Oops) in box.current! } }),
      ("ensureThen", { start, box in start.ensureThen { box.current!.asVoid() } }),
    ]
    for (kind, make) in kinds {
      for isDirect in [true, false] {
        let (start, box) = (Promise<Int>(), Locked<Promise<Int>?>(nil))
        let link = make(start, box)
        box.current = isDirect ? link : Promise.all([link, .value(1)]).then { $0[0] }
        start.fulfill(0)
        #expect(await ended(link) == "cycle", "\(kind)")
        box.current = nil
      }
    }
  }

  @Test func `closed by a late follow of a promise that waits already`() {
    let (upstream, other) = (Promise<Int>(), Promise<Int>())
    let link = upstream.then { $0 }
    link.follow(other)
    other.follow(link)
    #expect(other.error.map { name(of: $0) } == "cycle")
    #expect(link.error.map { name(of: $0) } == "cycle")
    link.ignore()
    withExtendedLifetime(upstream) {}
    let member = Promise<Int>()
    close("a combinator that also follows") { head in
      let race = Promise.race([member])
      race.follow(head.then { $0 })
      return race
    }
    close("one that also follows, by its first upstream") { head in
      let link = head.then { $0 }
      link.follow(member)
      return link
    }
    close("a bounded all that also follows") { head in
      let all = Promise<Int>.all(of: 0..<1, concurrently: 1) { _ in member }
      all.follow(head.then { [$0] })
      return all.then { $0[0] }
    }
    member.cancel()
  }

  /// With a time limit, in case one hangs.
  private func ended(_ promise: Promise<some Sendable>) async -> String {
    await asyncOutcome { try await promise.timeout(.seconds(60)).value }
  }
}
