import Coroutine
import CoroutineTesting

extension UnwaitedTests {
  /// Looks at promises and jobs, and handlers that are attached to them.
  static let pairsOfPromises: [Pair] = [
    look("isSettled", of: { $0 }, sees: { $0.isSettled }),
    look("isPending", of: { $0 }, sees: { $0.isPending }),
    look("isFulfilled", of: { $0 }, sees: { $0.isFulfilled }),
    look("result", of: { $0 }, sees: { $0.result == nil }),
    look("isRejected", .failure(CancellationError()), of: { $0 }, sees: { $0.isRejected }),
    look("error", .failure(CancellationError()), of: { $0 }, sees: { $0.error == nil }),
    look("isSettled of a link", of: { $0.asVoid() }, sees: { $0.isSettled }),
    look("isSettled of a link", .failure(CancellationError()), of: { $0.asVoid() }, sees: { $0.isSettled }),
    look("isSettled of a combinator", of: { Promise.all([$0, .value(1)]) }, sees: { $0.isSettled }),
    attach("observe", rounds: 3) { promise, note in _ = promise.observe { _ in note() } },
    attach("then", rounds: 2) { promise, note in _ = promise.then { _ in note() } },
    Pair("finally and finally", rounds: 2) {
      let job = co_launch(start: .lazy) {}
      let order = Cell("")
      func call(_ letter: String) -> Call {
        {
          job.finally { order.value += letter }
          return ""
        }
      }
      return Calls(one: call("a"), other: call("b")) {
        try job.join()
        try World.current?.settle()
        return order.value
      }
    },
    Pair("cancel and isCancelled", rounds: 1) {
      let job = co_launch(start: .lazy) {}
      return Calls(one: { "\(job.cancel())" }, other: { "\(job.isCancelled)" })
    },
    Pair("update and progress", rounds: 2) {
      let promise = ProgressPromise<Int>()
      return Calls(
        first: { "\(promise.progress == nil)" },
        one: { "\(promise.update(completed: 1, total: 2))" },
        other: { "\(promise.progress == nil)" }
      )
    },
  ]

  /// A promise is settled, and a coroutine looks at what follows from it.
  private static func look<Seen: AnyPromise>(
    _ name: String,
    _ result: Result<Int, any Error> = .success(1),
    of make: @escaping @Sendable (Promise<Int>) -> Seen,
    sees: @escaping @Sendable (Seen) -> Bool
  ) -> Pair {
    Pair("settling and \(name)", rounds: 3) {
      let promise = Promise<Int>()
      let seen = make(promise)
      return Calls(
        first: { "\(promise.isSettled)" },
        one: {
          switch result {
          case .success(let value): "\(promise.fulfill(value))"
          case .failure(let error): "\(promise.reject(error))"
          }
        },
        other: { "\(sees(seen))" }
      )
    }
  }

  /// Two calls that attach handlers to one promise, whose order shows when the promise is settled.
  private static func attach(
    _ name: String,
    rounds: Int,
    _ attach: @escaping @Sendable (Promise<Int>, @escaping @Sendable () -> Void) -> Void
  ) -> Pair {
    Pair("\(name) and \(name)", rounds: rounds) {
      let promise = Promise<Int>()
      let order = Cell("")
      func call(_ letter: String) -> Call { { "\(attach(promise) { order.value += letter })" } }
      return Calls(one: call("a"), other: call("b")) {
        promise.fulfill(1)
        try World.current?.settle()
        return order.value
      }
    }
  }

  /// Calls on objects whose other calls wait.
  static let pairsOfWaits: [Pair] = [
    Pair("add and wait", rounds: 2) {
      let group = WaitGroup()
      return (
        { "\(group.add())" },
        {
          let end: Void? = try? co_timeout(.seconds(1), group.wait)
          return "\(end != nil)"
        }
      )
    },
    Pair("forget and run", rounds: 2) {
      let (flights, landing) = (SingleFlight<Int, Int>(), Latch(1))
      let first = co_launch {
        try flights.run(1) {
          try landing.wait()
          return 1
        }
      }
      try World.current?.settle()
      return Calls(
        one: { "\(flights.forget(1))" },
        other: { String(describing: try? co_timeout(.seconds(1)) { try flights.run(1) { 2 } }) }
      ) {
        landing.countDown()
        return "\(try first.join())"
      }
    },
    Pair("unlock of what a select has locked and tryLock", rounds: 2) {
      let lock = FairMutex()
      return Calls(
        first: { try co_select { lock.onLock { "locked" } } },
        one: { "\(lock.unlock())" },
        other: {
          let isLocked = lock.tryLock()
          if isLocked { lock.unlock() }
          return "\(isLocked)"
        }
      )
    },
    Pair("acquire and available", rounds: 2) {
      let semaphore = FairSemaphore(1)
      return (
        {
          try semaphore.acquire()
          return ""
        }, { "\(semaphore.available)" }
      )
    },
    Pair("lockWrite, unlockWrite and tryLockRead", rounds: 2) {
      let lock = FairReadWriteLock()
      return Calls(
        first: {
          try lock.lockWrite()
          return ""
        },
        one: { "\(lock.unlockWrite())" },
        other: {
          let isLocked = lock.tryLockRead()
          if isLocked { lock.unlockRead() }
          return "\(isLocked)"
        }
      )
    },
  ]

  /// An actor that does nothing with its messages, and that waits for the first one.
  private static func idle() throws -> ActorRef<Int> {
    let actor = co_actor(of: Int.self) { mailbox in while try mailbox.receive() != nil {} }
    try World.current?.settle()
    return actor
  }

  /// What actors share beside their mailboxes.
  static let pairsOfActors: [Pair] = [
    Pair("register and actor(named:)", rounds: 2) {
      let (registry, actor) = (ActorRegistry(), try idle())
      return Calls(
        one: { "\(try registry.register(actor, as: "one"))" },
        other: { "\(registry.actor(named: "one", of: Int.self) == nil)" }
      )
    },
    Pair("unregister and names", rounds: 2) {
      let (registry, actor) = (ActorRegistry(), try idle())
      try registry.register(actor, as: "one")
      return Calls(
        first: { "\(registry.unregister("two"))" },
        one: { "\(registry.unregister("one"))" },
        other: { "\(registry.names)" }
      )
    },
    Pair("join and members", rounds: 2) {
      let (group, actor) = (ActorGroup<Int>(), try idle())
      return Calls(
        first: { "\(group.next() == nil)" },
        one: { "\(group.join(actor))" },
        other: { "\(group.members.count)" }
      )
    },
    Pair("leave and members", rounds: 2) {
      let (group, actor) = (ActorGroup<Int>(), try idle())
      group.join(actor)
      return Calls(
        first: { "\(group.members.count)" },
        one: { "\(group.leave(actor))" },
        other: { "\(group.members.count)" }
      )
    },
    Pair("next and next", rounds: 2) {
      let (group, actors) = (ActorGroup<Int>(), [try idle(), try idle()])
      for actor in actors { group.join(actor) }
      return Calls(
        one: { "\(group.next() === actors[0])" },
        other: { "\(group.next() === actors[0])" }
      )
    },
    // One round: a second one takes a hundred times as long, because the actor's coroutine takes part.
    Pair("stop and tryTell", rounds: 1) {
      let actor = try idle()
      return Calls(
        first: { "\(actor.tryTell(0))" },
        one: { "\(actor.stop())" },
        other: { "\(actor.tryTell(1))" }
      )
    },
    Pair("an answer and isAwaited", rounds: 2) {
      let reply = Cell<Reply<Int>?>(nil)
      let promise = Promise<Int> { reply.value = Reply($0) }
      return Calls(
        first: { "\(promise.isSettled)" },
        one: { "\(reply.value.map { $0(1) } == nil)" },
        other: { "\(reply.value?.isAwaited == true)" }
      )
    },
  ]
}
