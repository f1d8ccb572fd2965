import Dispatch
import Foundation
import Synchronization
import Testing

@testable import Coroutine

/// Ten faults of a server: what each tool says about one, and what in it names the culprit.
///
/// Each in a process of its own, because the tools look at the whole process. The last three are in
/// FaultReportTests.swift.
@Suite("The ten faults of a server", .timeLimit(.minutes(10)))
struct FaultTests {
  @Test func `1. two locks in opposite orders are a circle, with both coroutines and the line that waits`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      Faults().lockInOppositeOrders()
      settle(2)
      // In a build with a sanitizer, which reads no stacks, one of them may still be leaving its own.
      var circles = CoroutineRuntime.deadlocks()
      while circles.isEmpty {
        sched_yield()
        circles = CoroutineRuntime.deadlocks()
      }
      #expect(circles.count == 1 && Set(circles[0].map(\.name)) == ["pay rent", "save"], "\(circles)")
      for member in circles[0] {
        let names = CoroutineRuntime.frames(at: member.stack).compactMap(\.symbol)
        #expect(isSanitized || names.contains { $0.contains("Faults.transfer(from:") }, "\(names)")
      }
      let line = CoroutineRuntime.dump(.list).split(separator: "\n").last ?? ""
      #expect(line.contains(#/^deadlock: #\d+ "[a-z ]+" waits for #\d+ "[a-z ]+", which waits for #/#), "\(line)")
      #expect(CoroutineRuntime.dump(.stacks).hasSuffix("\n\n\(line)\n"))
    }
  }

  @Test func `2. a lock that is held during a slow wait names its owner, and the line where that one waits`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      Faults().holdALockDuringAWait(Promise<Int>())
      settle(30)
      let groups = CoroutineRuntime.dump(.stacks).components(separatedBy: "\n\n")
      let waiting = try #require(groups.first { $0.contains(#/^29 waiting, longest .* for a lock \(FairMutex 0x/#) })
      #expect(waiting.contains(#/held by #\d+ "request 0"\)/#), "\(groups)")
      let owner = try #require(groups.first { $0.hasPrefix("1 waiting, ") })
      #expect(owner.contains("for a promise (Promise<Int> 0x") && owner.contains("\"request 0\""), "\(owner)")
      #expect(isSanitized || owner.contains("Faults.refresh("), "\(owner)")
      #expect(
        groups.last?.contains(#/#\d+ "request 0" holds up 29: 29 waiting for a lock .*; it is waiting for a promise/#)
          == true
      )
      #expect(CoroutineRuntime.deadlocks().isEmpty)
    }
  }

  @Test(.tags(.realClock)) func `3. a computation without a suspension is named, and what it keeps waiting`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      let isOver = Flag()
      let stall = firstStall {
        Faults().compute {
          // On a slow machine the heartbeat's timer may have fired before this begins.
          func isTimed() -> Bool {
            CoroutineRuntime.snapshot().coroutines.contains { $0.name == "heartbeat" && $0.state == .waiting }
          }
          while !isTimed() { try? co_yield() }
          while !isOver.isRaised {}
        }
      }
      #expect(stall.coroutine?.contains("\"report\"") == true && stall.activity == .computing, "\(stall)")
      #expect(stall.worker == "server.requests", "\(stall)")
      // On a slow machine the stall may be one of the looks at the heartbeat, before its timer is overdue.
      let overdue = #/timers overdue by \d+ ms on server.requests, kept by #\d+ "report"/#
      while !CoroutineRuntime.dump(.list).contains(overdue) { sched_yield() }
      isOver.raise()
    }
  }

  @Test(.tags(.realClock)) func `4. a blocking read is named with the call`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      let pipe = PipePair()
      _ = fcntl(pipe.reader, F_SETFL, 0)
      let stall = firstStall { Faults().callRead(pipe.reader) }
      #expect(stall.coroutine?.contains("\"import\"") == true && "\(stall.activity)" == "in read(2)", "\(stall)")
      pipe.put()
    }
  }

  @Test(.tags(.realClock)) func `5. a lock of threads is named as one`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      let (settings, isOver, isHeld) = (Faults.Settings(), DispatchSemaphore(value: 0), Flag())
      startThread {
        settings.values.withLock { _ in
          isHeld.raise()
          isOver.wait()
        }
      }
      while !isHeld.isRaised { sched_yield() }
      let stall = firstStall { Faults().lockThreads(settings) }
      #expect(stall.coroutine?.contains("\"lookup\"") == true && "\(stall.activity)" == "in futex(2)", "\(stall)")
      #expect("\(stall)".contains("a lock that blocks threads"))
      isOver.signal()
    }
  }

  @Test func `6. coroutines that wait for ever are one group, and all that has grown between two profiles`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      let faults = Faults()
      faults.forgetAnswers(100)
      settle(100)
      let first = CoroutineRuntime.profile(.growth)
      faults.forgetAnswers(900)
      settle(1_000)
      let groups = CoroutineRuntime.dump(.stacks).components(separatedBy: "\n\n")
      #expect(groups.count == 2, "\(groups)")
      #expect(
        groups[1].contains(#/^1000 waiting, .* for a promise \(1000 different ones, for example Promise<Int> 0x/#),
        "\(groups)"
      )
      #expect(groups[1].contains("created at CoroutineKernelTests/FaultPrograms.swift:"), "\(groups[1])")
      #expect(groups[1].contains("launched at CoroutineKernelTests/FaultPrograms.swift:"), "\(groups[1])")
      #expect(isSanitized || groups[1].contains("Faults.call("), "\(groups[1])")
      let growth = CoroutineRuntime.profile(.growth)
      #expect(!first.isEmpty && String(decoding: growth, as: UTF8.self).contains("FaultPrograms.swift:"))
    }
  }

  @Test func `7. permits that are not given back: many wait for permits, and no coroutine is left that has them`() async
  {
    await #expect(processExitsWith: .success) {
      alarm(300)
      Faults().losePermits()
      settle(16)
      let groups = CoroutineRuntime.dump(.stacks).components(separatedBy: "\n\n")
      #expect(groups.count == 2, "\(groups)")
      #expect(groups[1].contains(#/^16 waiting, .* for permits \(FairSemaphore 0x[0-9a-f]+, 0 permits available\)/#))
      #expect(isSanitized || groups[1].contains("Faults.query("), "\(groups[1])")
      // Those that had them have failed.
      #expect(CoroutineRuntime.metrics.failed == 4)
    }
  }
}

/// Waits until `count` coroutines are left, and all wait; with `stacks`, until they have left their stacks as well.
///
/// A coroutine counts as waiting some instructions before it leaves its stack. Until then, and its thread may lose the
/// processor there, it is torn in a dump, and in no group with others.
func settle(_ count: Int, stacks: Bool = true) {
  while true {
    let all = CoroutineRuntime.snapshot(stacks: stacks).coroutines
    if all.count == count, all.allSatisfy({ $0.state == .waiting && !$0.isTorn }) { return }
    sched_yield()
  }
}

/// The first stall of what `body` starts.
func firstStall(_ body: () -> Void) -> CoroutineRuntime.Stall {
  let stalls = Locked<[CoroutineRuntime.Stall]>([])
  CoroutineRuntime.onStall(after: .milliseconds(20)) { stall in stalls.withLock { $0.append(stall) } }
  body()
  while true {
    if let stall = stalls.current.first { return stall }
    sched_yield()
  }
}
