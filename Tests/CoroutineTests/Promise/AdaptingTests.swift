import Coroutine
import Dispatch
import Testing

@Suite("Promise: callback adapters and small makers", .timeLimit(.minutes(10)))
struct AdaptingTests {
  private func outcomeOf<Value: Sendable>(_ promise: Promise<Value>) async -> String {
    await asyncOutcome { try await promise.value }
  }

  @Test func `of a value and an error the error wins; neither is invalidCallback`() async {
    #expect(await outcomeOf(Promise<Int>.fromCallback { $0(1, nil) }) == "1")
    #expect(await outcomeOf(Promise<Int>.fromCallback { $0(1, Oops("e")) }) == "Oops(e)")
    #expect(await outcomeOf(Promise<Int>.fromCallback { $0(nil, nil) }) == "invalidCallback")
    #expect(await outcomeOf(Promise<Int>.fromErrorFirstCallback { $0(nil, 2) }) == "2")
    #expect(await outcomeOf(Promise<Int>.fromErrorFirstCallback { $0(Oops("e"), nil) }) == "Oops(e)")
    #expect(await outcomeOf(Promise<Int>.fromErrorFirstCallback { $0(nil, nil) }) == "invalidCallback")
  }

  @Test func `Result, value only, error only, nothing`() async {
    #expect(await outcomeOf(Promise<Int>.fromResultCallback { $0(Result<Int, Oops>.success(1)) }) == "1")
    #expect(await outcomeOf(Promise<Int>.fromResultCallback { $0(Result<Int, Oops>.failure(Oops("r"))) }) == "Oops(r)")
    #expect(await outcomeOf(Promise<Int>.fromValueCallback { $0(3) }) == "3")
    #expect(await outcomeOf(Promise<Void>.fromErrorCallback { $0(nil) }) == "()")
    #expect(await outcomeOf(Promise<Void>.fromErrorCallback { $0(Oops("e")) }) == "Oops(e)")
    #expect(await outcomeOf(Promise<Void>.fromPlainCallback { $0() }) == "()")
  }

  @Test func `called later from another thread, never, or not before the body throws`() async {
    #expect(await outcomeOf(Promise<Int>.fromCallback { done in startThread { done(4, nil) } }) == "4")
    #expect(await outcomeOf(Promise<Int>.fromCallback { _ in }) == "abandoned")
    #expect(await outcomeOf(Promise<Int>.fromCallback { _ in throw Oops("body") }) == "Oops(body)")
  }

  @Test func `of two calls the first counts and the second is reported`() async {
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in heard(name(of: unhandled.error)) }
      let promise = Promise<Int>.fromCallback { done in
        done(1, nil)
        done(2, nil)
      }
      #expect(promise.result.map { outcome($0) } == "1")
      #expect(heard.all == ["ResumerUsedTwiceError"])
    }
  }

  @Test func `a resumer may be used once after its promise was settled directly; a second use is reported`() async {
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in heard(name(of: unhandled.error)) }
      let (promise, resolver) = Promise<Int>.pending()
      promise.fulfill(1)
      resolver.resume(2)
      #expect(heard.all.isEmpty)
      resolver.resume(3)
      #expect(heard.all == ["ResumerUsedTwiceError"])
      let (follower, late) = Promise<Int>.pending()
      follower.follow(promise)
      late.fail(Oops("late"))
      #expect(follower.result.map { outcome($0) } == "1")
      #expect(heard.all == ["ResumerUsedTwiceError"])
    }
  }

  @Test func `a link in the callback style settles when its resumer is used`() async {
    #expect(await outcomeOf(Promise.value(1).then { (value, done: Resumer<Int>) in done.resume(value + 1) }) == "2")
    #expect(await outcomeOf(Promise.value(1).then { (_, done: Resumer<Int>) in done.fail(Oops("f")) }) == "Oops(f)")
    #expect(await outcomeOf(Promise.value(1).then { (_, _: Resumer<Int>) in throw Oops("t") }) == "Oops(t)")
    #expect(await outcomeOf(Promise.value(1).then { (_, _: Resumer<Int>) in }) == "abandoned")
  }

  @Test func `trying runs at once; running runs on its queue; task runs async code and is cancelled with the promise`()
    async throws
  {
    #expect(Promise.trying { 1 }.result.map { outcome($0) } == "1")
    #expect(await outcomeOf(Promise<Int>.trying { () throws -> Int in throw Oops("t") }) == "Oops(t)")
    #expect(await outcomeOf(Promise<Int>.trying { () throws -> Promise<Int> in .value(2) }) == "2")
    #expect(await outcomeOf(Promise.running(on: taggedQueue("there")) { currentTag ?? "" }) == "there")
    #expect(await outcomeOf(Promise.task { 5 }) == "5")
    let cancelled = Gate()
    let task = Promise<Int>.task {
      // Only after Task.isCancelled: a handler whose operation has ended before it is called is not called.
      await withTaskCancellationHandler {
        while cancelled.isPending { await Task.yield() }
      } onCancel: {
        cancelled.open()
      }
      return 1
    }
    task.cancel()
    try await onCoroutine { try cancelled.pass() }
    #expect(await outcomeOf(task) == "CancellationError")
  }

  @Test func `compactMap, thenMap and validate`() async {
    #expect(await outcomeOf(Promise.value("7").compactMap { Int($0) }) == "7")
    #expect(await outcomeOf(Promise.value("x").compactMap { Int($0) }) == "PromiseValueMissingError")
    #expect(await outcomeOf(Promise.value([1, 2]).thenMap { Promise.value($0 * 2) }) == "[2, 4]")
    #expect(await outcomeOf(Promise.value(1).validate { $0 > 0 }) == "1")
    #expect(await outcomeOf(Promise.value(1).validate { $0 > 1 }) == "PromiseValidationError")
    #expect(await outcomeOf(Promise.value(1).validate(else: Oops("no")) { $0 > 1 }) == "Oops(no)")
  }

  @Test func `all of promises of different types is a tuple`() async throws {
    let (a, b, c) = (Promise<Int>(), Promise<String>(), Promise<[Double]>())
    let all = Promise.all(a, b, c)
    c.fulfill([1.5])
    a.fulfill(1)
    b.fulfill("b")
    #expect(try await all.value == (1, "b", [1.5]))
    #expect(await outcomeOf(Promise.all(a, Promise<String>.failure(Oops("x")))) == "Oops(x)")
  }

  @Test func `a guarantee runs the same chain without an error path`() async throws {
    let guarantee = Guarantee<Int> { done in startThread { done(1) } }
    #expect(try await guarantee.then { $0 + 1 }.then { Guarantee.value("\($0)") }.value == "2")
    #expect(try await onCoroutine { try co_await(Guarantee.value(3).tap { _ in }) } == 3)
    #expect(Guarantee.value(4).current == 4)
    #expect(await outcomeOf(Guarantee.value(4).then { Promise.value("\($0)!") }) == "4!")
    #expect(await outcomeOf(guarantee.promise.then { _ -> Int in throw Oops("t") }) == "Oops(t)")
    #expect(try await Guarantee.all([.value(1), .value(2)]).value == [1, 2])
    #expect(try await Guarantee.race([.value(1)]).value == 1)
    #expect(try await Promise<Int>.failure(Oops("x")).recovered { _ in 9 }.value == 9)
    #expect(await asyncOutcome { try await Guarantee<Int> { _ in }.value } == "abandoned")
  }
}
