import Coroutine
import Testing

@Suite("Promise: all, any, race, allSettled, &&&, |||", .timeLimit(.minutes(10)))
struct CombiningTests {
  @Test func `all has the values in the order of the input, whatever the order of settling`() async {
    let members = (0..<5).map { _ in Promise<Int>() }
    let all = Promise.all(members)
    for index in [3, 0, 4, 2] { members[index].fulfill(index) }
    #expect(all.result == nil)
    members[1].fulfill(1)
    #expect(all.result.map { outcome($0) } == "[0, 1, 2, 3, 4]")
  }

  @Test func `all rejects with the first failure, as it is, and leaves the others running`() async {
    let members = (0..<3).map { _ in Promise<Int>() }
    let all = Promise.all(members)
    members[1].reject(Oops("first"))
    #expect(await asyncOutcome { try await all.value } == "Oops(first)")
    #expect(members[0].isPending && members[2].isPending)
    members[2].reject(Oops("second"))
    #expect(members[0].fulfill(1))
  }

  @Test func `all of none is fulfilled at once`() {
    #expect(Promise<Int>.all([]).result.map { outcome($0) } == "[]")
    #expect(Promise<Int>.all([String: Promise<Int>]()).result.map { outcome($0) } == "[:]")
    #expect(Promise<Int>.allSettled([]).result.map { outcome($0) } == "[]")
  }

  @Test func `all of a dictionary has the same keys`() async {
    let (one, two) = (Promise<Int>(), Promise<Int>())
    let all = Promise.all(["one": one, "two": two, "three": .value(3)])
    two.fulfill(2)
    one.fulfill(1)
    #expect((try? all.result?.get()) == ["one": 1, "two": 2, "three": 3])
    let failing = Promise.all(["a": Promise.value(1), "b": .failure(Oops("b"))])
    #expect(await asyncOutcome { try await failing.value } == "Oops(b)")
  }

  @Test func `the same promise may be a member more than once`() {
    let promise = Promise<Int>()
    let all = Promise.all([promise, promise, promise])
    promise.fulfill(1)
    #expect(all.result.map { outcome($0) } == "[1, 1, 1]")
  }

  @Test func `allSettled tells how each ended and never rejects`() async throws {
    let members = [Promise.value(1), .failure(Oops("two")), Promise<Int>()]
    let all = Promise.allSettled(members)
    members[2].cancel()
    #expect(try await all.value.map { outcome($0) } == ["1", "Oops(two)", "CancellationError"])
  }

  @Test func `any has the first value, and all failures in the order of the input where there is none`() async {
    let members = (0..<3).map { _ in Promise<Int>() }
    let any = Promise.any(members)
    members[0].reject(Oops("0"))
    #expect(any.result == nil)
    members[2].fulfill(2)
    #expect(any.result.map { outcome($0) } == "2")
    members[1].reject(Oops("late"))

    let losers = (0..<2).map { _ in Promise<Int>() }
    let none = Promise.any(losers)
    losers[1].reject(Oops("1"))
    losers[0].reject(Oops("0"))
    #expect(await asyncOutcome { try await none.value } == "AggregateError[Oops(0), Oops(1)]")
  }

  @Test func `race has the outcome of the first to settle, be it a failure`() async {
    let members = (0..<2).map { _ in Promise<Int>() }
    let race = Promise.race(members)
    members[1].reject(Oops("fast"))
    members[0].fulfill(0)
    #expect(await asyncOutcome { try await race.value } == "Oops(fast)")
  }

  @Test func `any and race of none reject with an empty aggregate`() async {
    #expect(await asyncOutcome { try await Promise<Int>.any([]).value } == "AggregateError[]")
    #expect(await asyncOutcome { try await Promise<Int>.race([]).value } == "AggregateError[]")
  }

  @Test func `the other members keep running, or are cancelled on request, except those with other waiters`()
    async
  {
    for losers in [AnyPromise.Losers.leftRunning, .cancelled] {
      let (fast, slow, shared) = (Promise<Int>(), Promise<Int>(), Promise<Int>())
      let alsoWaiting = shared.then { $0 }
      let race = Promise.race([slow, fast, shared], losers: losers)
      fast.fulfill(1)
      #expect(race.result.map { outcome($0) } == "1")
      #expect(slow.isPending == (losers == .leftRunning))
      #expect(shared.isPending)
      shared.fulfill(2)
      #expect(await asyncOutcome { try await alsoWaiting.value } == "2")
    }
  }

  @Test func `a sibling's cancellation never masks the first failure`() async {
    let members = (0..<3).map { _ in Promise<Int>() }
    let all = Promise.all(members, losers: .cancelled)
    members[1].reject(Oops("first"))
    #expect(await asyncOutcome { try await all.value } == "Oops(first)")
    #expect(members[0].result.map { outcome($0) } == "CancellationError")
    #expect(members[2].result.map { outcome($0) } == "CancellationError")
  }

  @Test func `members that are settled already decide at once, and the later ones are cancelled`() {
    let behind = Promise<Int>()
    #expect(Promise.race([.value(1), behind], losers: .cancelled).result.map { outcome($0) } == "1")
    #expect(behind.result.map { outcome($0) } == "CancellationError")
  }

  @Test func `&&& has both values, plain ones too, and the first failure`() async throws {
    let (a, b) = (Promise<Int>(), Promise<String>())
    let both = a &&& b
    b.fulfill("b")
    a.fulfill(1)
    #expect(try await both.value == (1, "b"))
    #expect(try await (a &&& "plain").value == (1, "plain"))
    #expect(try await (2.5 &&& b).value == (2.5, "b"))
    #expect(await asyncOutcome { try await (a &&& Promise<Int>.failure(Oops("x"))).value } == "Oops(x)")
  }

  @Test func `||| with a plain value on the left has that value, and ignores the promise`() async throws {
    let errors = UnhandledErrors()
    let pending = Promise<Int>()
    #expect(await asyncOutcome { try await (7 ||| pending).value } == "7")
    pending.reject(errors.failure("not needed"))
    let nothing: Promise<Int>? = nil
    #expect(await asyncOutcome { try await (8 ||| (nothing ?? .value(9))).value } == "8")
    #expect(await asyncOutcome { try await (10 ||| Promise<Int>.failure(Oops())).value } == "10")
    #expect(try await errors.settledLabels().isEmpty)
  }

  @Test func `||| has the first value, a plain one where there is none, and both failures`() async {
    let (a, b) = (Promise<Int>(), Promise<Int>())
    let either = a ||| b
    a.reject(Oops("a"))
    b.fulfill(2)
    #expect(await asyncOutcome { try await either.value } == "2")
    let failed = a ||| Promise<Int>.failure(Oops("b"))
    #expect(await asyncOutcome { try await failed.value } == "AggregateError[Oops(a), Oops(b)]")
    #expect(await asyncOutcome { try await (a ||| 5).value } == "5")
  }

  @Test func `an abandoned member decides`() async {
    let all = Promise.all(Self.abandoned())
    #expect(await asyncOutcome { try await all.value } == "abandoned")
  }

  private static func abandoned() -> [Promise<Int>] { [Promise(), Promise()] }
}
