import Synchronization
import Testing

// WorkerPool/ThreadWords.swift: the watchdog's thread that goes to sleep, while others schedule inspections.

extension InterleavingTests {
  @Suite struct WatchdogWordTests {
    @Test func `an inspection begins after every schedule`() {
      let found = Explorer.explore { Self.model($0) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `an inspection that is due soon does not wait for a later one`() {
      let found = Explorer.explore { Self.model($0, later: true) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.torn("schedule(_:)"),  // overwrites NEVER unseen, and wakes nobody
      .skipped("schedule(_:)"),
      .torn("change(_:to:)"),  // overwrites SOON unseen
      .compares(mask: 0, in: "change(_:to:)"),  // the same
    ])
    func `an inspection is missed without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault) { Self.model($0) }.failure != nil)
    }

    private final class World {
      let word = WatchdogWord()
      let asked = Atomic<Int>(0)
    }

    /// Two threads ask for an inspection soon.
    ///
    /// With `later`, the watchdog's thread has put off the next one before.
    private static func model(_ run: Explorer, later: Bool = false) {
      Futex.sleepers = [:]
      let world = World()
      let started = Gate()
      let total = 2
      for index in 0..<total {
        run.thread("worker \(index)") {
          if later { started.pass() }
          world.asked.wrappingAdd(1, ordering: .relaxed)
          switch world.word.schedule(.soon) {
          case .nothing: break
          case .start: started.open()
          case .wake: world.word.wake()
          }
        }
      }
      run.thread("watchdog") {
        if later {
          _ = world.word.schedule(.later)
          started.open()
        }
        started.pass()
        var seen = 0
        // A schedule that is lost leaves the thread asleep, and the explorer reports that.
        while seen < total {
          let time = world.word.scheduled()
          guard time == .soon else {
            world.word.sleep(time, atMost: 0)
            continue
          }
          // Its time passes at once.
          guard world.word.begin(.soon) else { continue }
          seen = world.asked.load(ordering: .relaxed)
          world.word.end()
        }
      }
    }
  }
}
