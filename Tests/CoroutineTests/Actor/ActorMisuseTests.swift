import Coroutine
import Testing

@Suite("Actors: misuse", .timeLimit(.minutes(10)))
struct ActorMisuseTests {
  @Test func `a timer that repeats needs an interval`() async throws {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try synchronously {
        try co_actor(of: Int.self) { mailbox in mailbox.schedule(1, every: .zero) }.job.blockingWait()
      }
    }
    #expect(result?.said("give an interval longer than nothing") == true)
  }

  @Test func `a stash holds something`() async throws {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try synchronously { try co_actor(of: Int.self) { mailbox in try mailbox.stash(1, limit: 0) }.job.blockingWait() }
    }
    #expect(result?.said("give a limit of 1 or more") == true)
  }

  @Test func `a limit of restarts is a number and a time`() async throws {
    let number = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = RestartLimit(restarts: -1)
    }
    #expect(number?.said("A supervisor cannot take -1 restarts: allow 0 or more.") == true)
    let time = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = RestartLimit(restarts: 1, within: .zero)
    }
    #expect(time?.said("give a time longer than nothing") == true)
  }

  @Test func `a mailbox that drops holds something`() async throws {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      _ = co_actor(of: Int.self, mailbox: .dropOldest(0)) { _ in }
    }
    #expect(result?.said("must hold at least 1 value") == true)
  }

  @Test func `after its body nothing can be launched in a mailbox`() async throws {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      final class Leak: @unchecked Sendable {
        // Sound because the process has one coroutine at a time that uses it.
        var mailbox: Mailbox<Int>?
      }
      let leak = Leak()
      try synchronously { try co_actor(of: Int.self) { mailbox in leak.mailbox = mailbox }.job.blockingWait() }
      leak.mailbox?.launch {}
    }
    #expect(result?.said("a scope was used after its co_scope had returned") == true)
  }
}
