import Synchronization
import Testing

// WorkerPool/ThreadWords.swift: a worker's thread that goes to sleep, on the word or in its poller, while others submit
// drains and the watchdog takes the events of the poller.

extension InterleavingTests {
  @Suite struct WorkerWordTests {
    @Test(arguments: [true, false])
    func `every submission is followed by a drain, however the thread sleeps`(inPoller: Bool) {
      let found = Explorer.explore { Self.model($0, inPoller: inPoller) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a watchdog that gives the wake-up back does not keep the thread asleep`() {
      let found = Explorer.explore(preemptions: 2) { Self.model($0, inPoller: true, watchdog: .givesBack) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `the thread sleeps for ever if a watchdog keeps the wake-up`() {
      #expect(Explorer.explore { Self.model($0, inPoller: true, watchdog: .keeps) }.failure != nil)
    }

    @Test(arguments: [
      Fault.torn("submit()"),  // overwrites POLLING unseen, and signals nobody
      .skipped("submit()"),
      .torn("begin()"),  // overwrites SUBMITTED unseen
      .torn("mayRest(inPoller:)"),  // the same
      .compares(mask: 0, in: "mayRest(inPoller:)"),  // sleeps over a submission
    ])
    func `a submission is lost without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault) { Self.model($0, inPoller: true) }.failure != nil)
    }

    @Test func `a thread that ends after a sleep leaves no submission without a drain, nor two threads at work`() {
      let found = Explorer.explore { Self.endingModel($0) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.torn("mayEnd()"),  // overwrites SUBMITTED unseen
      .compares(mask: 0, in: "mayEnd()"),  // ends over a submission
      .torn("submit()"),  // finds the thread that has just ended asleep
    ])
    func `a thread that ends loses a submission without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault) { Self.endingModel($0) }.failure != nil)
    }

    /// Each thread of the worker ends as soon as it may sleep, and a submission starts the next one.
    private static func endingModel(_ run: Explorer) {
      let world = World()
      let total = 2
      let starts = (0..<total).map { _ in Gate() }
      let started = Atomic<Int>(0)
      let atWork = Atomic<Int>(0)
      let drained = Atomic<Int>(0)
      for index in 0..<total {
        run.thread("sender \(index)") {
          world.queued.wrappingAdd(1, ordering: .relaxed)
          // A thread that has changed the word to SLEEPING finds out by itself that it must not end.
          if world.word.submit() == .start { starts[started.wrappingAdd(1, ordering: .relaxed).oldValue].open() }
        }
        run.thread("thread \(index)") {
          guard starts[index].passOrEnd() else { return }
          let others = atWork.wrappingAdd(1, ordering: .relaxed).oldValue
          run.require(others == 0, "two threads serve one worker")
          while true {
            if world.word.begin() {
              drained.wrappingAdd(world.queued.exchange(0, ordering: .relaxed), ordering: .relaxed)
            } else if world.word.mayRest(inPoller: false) {
              atWork.wrappingSubtract(1, ordering: .relaxed)
              if world.word.mayEnd() { return }
              atWork.wrappingAdd(1, ordering: .relaxed)
            }
          }
        }
      }
      run.atEnd { run.require(drained.load(ordering: .relaxed) == total, "a submission is lost") }
    }

    private enum Watchdog { case absent, givesBack, keeps }

    /// The kernel's side of a poller with no event but the wake-up.
    private final class Epoll {
      private let event = Atomic<Bool>(false)
      private let isPending = Gate()

      func signal() {
        event.store(true, ordering: .relaxed)
        isPending.open()
      }

      /// Takes the event; returns whether there was one.
      func takeAtOnce() -> Bool {
        isPending.close()
        return event.exchange(false, ordering: .relaxed)
      }

      func take() {
        repeat { isPending.pass() } while !takeAtOnce()
      }
    }

    private final class World {
      let word = WorkerWord()
      let epoll = Epoll()
      let queued = Atomic<Int>(0)
    }

    private static func model(_ run: Explorer, inPoller: Bool, watchdog: Watchdog = .absent) {
      Futex.sleepers = [:]
      let world = World()
      let total = 2
      let started = Gate()
      for index in 0..<total {
        run.thread("sender \(index)") {
          world.queued.wrappingAdd(1, ordering: .relaxed)
          switch world.word.submit() {
          case .nothing: break
          case .start: started.open()
          case .wake: world.word.wake()
          case .signal: world.epoll.signal()
          }
        }
      }
      run.thread("worker") {
        started.pass()
        var drained = 0
        // A submission that is lost leaves the thread asleep, and the explorer reports that.
        while drained < total {
          if world.word.begin() {
            drained += world.queued.exchange(0, ordering: .relaxed)
          } else if world.word.mayRest(inPoller: inPoller) {
            if inPoller { world.epoll.take() } else { world.word.sleep(atMost: 0) }
          }
        }
      }
      if watchdog != .absent {
        run.thread("watchdog") {
          if world.epoll.takeAtOnce(), watchdog == .givesBack { world.epoll.signal() }
        }
      }
    }
  }
}
