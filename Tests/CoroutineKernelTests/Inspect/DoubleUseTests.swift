import Coroutine
import Testing

/// Each test runs in a separate process: the error of a second use has no identity, so the test must receive every
/// error.
@Suite("A second use is reported with its origin", .timeLimit(.minutes(10)))
struct DoubleUseTests {
  @Test func `of a resumer, with the name and the launch site of the waiting coroutine, also after its end`()
    async throws
  {
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        heard("\(type(of: unhandled.error)) in \(unhandled.origin)")
      }
      let kept = Locked<Resumer<Int>?>(nil)
      let value = try await co_launch(name: "the one that waited") {
        try co_suspend { (done: Resumer<Int>) in
          kept.current = done
          done.resume(1)
        }
      }.value
      kept.current?.resume(2)
      #expect(value == 1)
      #expect(heard.count == 1)
      #expect(heard.all[0].hasPrefix("ResumerUsedTwiceError in \"the one that waited\" (id "))
      #expect(heard.all[0].contains("DoubleUseTests.swift:"))
    }
  }

  @Test func `of a promise's resumer, with the source line that created the promise`() async throws {
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        heard("\(type(of: unhandled.error)) in \(unhandled.origin)")
      }
      let promise = Promise<Int> { done in
        done.resume(1)
        done.resume(2)
      }
      withExtendedLifetime(promise) {}
      #expect(heard.count == 1)
      #expect(heard.all[0].hasPrefix("ResumerUsedTwiceError in a promise (created at "))
      #expect(heard.all[0].contains("DoubleUseTests.swift:"))
    }
  }

  @Test func `of a reply, with the name and the launch site of the actor`() async throws {
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        heard("\(type(of: unhandled.error)) in \(unhandled.origin)")
      }
      let actor = co_actor(of: Reply<Int>.self, name: "the answerer") { mailbox in
        while let reply = try mailbox.receive() {
          reply(1)
          reply(2)
        }
      }
      let answer = try await onCoroutine { try actor.ask { $0 } }
      actor.stop()
      try await actor.job.value
      #expect(answer == 1)
      #expect(heard.count == 1)
      #expect(heard.all[0].hasPrefix("ReplyUsedTwiceError in \"the answerer\" (id "))
      #expect(heard.all[0].contains("DoubleUseTests.swift:"))
    }
  }

  @Test func `of a reply to a resumer, with the name of the asking coroutine`() async throws {
    await #expect(processExitsWith: .success) {
      let heard = Trace()
      CoroutineRuntime.unhandledErrorHandler = { unhandled in
        heard("\(type(of: unhandled.error)) in \(unhandled.origin)")
      }
      try await co_launch(name: "the asker") {
        _ = try co_suspend { (done: Resumer<Int>) in
          let reply = Reply(done)
          reply(1)
          reply(2)
        }
      }.value
      #expect(heard.count == 1)
      #expect(heard.all[0].hasPrefix("ReplyUsedTwiceError in \"the asker\" (id "))
    }
  }
}
