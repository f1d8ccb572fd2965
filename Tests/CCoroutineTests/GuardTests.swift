import CCoroutine
import CTestSupport
import Glibc
import Testing

/// A context on a stack of the smallest class, whose guard has 16 KiB.
private struct Guarded {
  let fiber: Fiber
  /// Kept here, because a trim gives the control block's memory back as well.
  let low: UnsafePointer<CChar>

  init() throws {
    fiber = try Fiber(stack: 16 << 10) { _ in }
    low = UnsafePointer(fiber.context.pointee.low)
  }

  /// Whether no end of the guard below the stack can be read, and the stack can.
  var isGuarded: Bool { !cts_is_readable(low - 1) && !cts_is_readable(low - (16 << 10)) && cts_is_readable(low) }
}

private func contexts(_ count: Int) throws -> [Guarded] { try (0..<count).map { _ in try Guarded() } }

private func allHold(_ contexts: [Guarded]) -> Bool { contexts.allSatisfy { $0.isGuarded } }

/// Frees most of the stacks, and gives their memory back; every slab keeps some that are in use.
private func freeMost(_ contexts: [Guarded]) {
  for (index, context) in contexts.enumerated() where index % 20 != 0 { try? context.fiber.destroy() }
  cco_trim(0)
}

/// The report's line about guards.
private var line: String {
  String(cString: cco_report()).split(separator: "\n").first { $0.hasPrefix("stack guards") }.map(String.init) ?? ""
}

/// Starts the runtime on a kernel that pretends, and checks that every guard holds, also after a trim.
private func start(_ pretences: Int32, expecting kind: cco_guard_kind, _ words: String) throws {
  precondition(cts_pretend(UInt32(pretences)) == 0)
  let all = try contexts(100)
  #expect(cco_stacks().guard == kind)
  #expect(line.contains(words), "\(line)")
  #expect(allHold(all))
  freeMost(all)
  #expect(allHold(all))
}

@Suite("Guards")
struct GuardTests {
  /// Whether this kernel has markers, and so something to pretend.
  static let hasMarkers = cco_stacks().guard == CCO_GUARD_MARKERS

  @Test("Every guard of many stacks holds, at both ends, also after their memory was given back")
  func many() async {
    await #expect(processExitsWith: .success) {
      let all = try contexts(500)
      #expect(allHold(all))
      freeMost(all)
      #expect(allHold(all))
      let again = try contexts(475)
      #expect(allHold(again))
    }
  }

  @Test("Where MADV_GUARD_INSTALL is answered and does nothing, guards stand by mprotect, and the report says why")
  func noEffect() async {
    await #expect(processExitsWith: .success) {
      let pretences = CTS_SINGLE_MARKERS_DO_NOTHING | CTS_BATCHES_DO_NOTHING
      try start(Int32(pretences), expecting: CCO_GUARD_MPROTECT, "was answered and does nothing here")
    }
  }

  @Test("Where only batches do nothing, markers are installed one by one", .enabled(if: hasMarkers))
  func noBatches() async {
    await #expect(processExitsWith: .success) {
      try start(Int32(CTS_BATCHES_DO_NOTHING), expecting: CCO_GUARD_MARKERS, "installed singly")
    }
  }

  @Test("Where markers vanish with the memory of a trim, guards stand by mprotect", .enabled(if: hasMarkers))
  func lostByTrim() async {
    await #expect(processExitsWith: .success) {
      try start(Int32(CTS_TRIMS_REMOVE_MARKERS), expecting: CCO_GUARD_MPROTECT, "vanish when memory is given back")
    }
  }

  @Test("Where nothing says whether a marker has its effect, guards stand by mprotect", .enabled(if: hasMarkers))
  func unseen() async {
    await #expect(processExitsWith: .success) {
      try start(Int32(CTS_PROOF_IS_REFUSED), expecting: CCO_GUARD_MPROTECT, "could not be looked at")
    }
  }

  @Test("Where mprotect does nothing either, the report says that there are no guards")
  func nothingWorks() async {
    await #expect(processExitsWith: .success) {
      let pretences = CTS_SINGLE_MARKERS_DO_NOTHING | CTS_BATCHES_DO_NOTHING | CTS_MPROTECT_DOES_NOTHING
      precondition(cts_pretend(UInt32(pretences)) == 0)
      #expect(line.contains("off: neither MADV_GUARD_INSTALL nor mprotect"), "\(line)")
      #expect(cco_mitigations() & (CCO_MITIGATION_GUARDS.rawValue | CCO_MITIGATION_GUARD_MARKERS.rawValue) == 0)
    }
  }

  /// Locks the process's memory, what is mapped now and later, as far as it is touched; returns whether it may.
  static func lockMemory() -> Bool {
    let onFault: Int32 = 4  // MCL_ONFAULT, which the C library's module lacks
    return mlockall(MCL_CURRENT | MCL_FUTURE | onFault) == 0
  }

  /// Whether this process may do so; a sanitizer's shadow memory is too large for it.
  static let mayLockMemory: Bool = {
    guard !Machine.isSanitized, lockMemory() else { return false }
    munlockall()
    return true
  }()

  @Test(
    "In a process that locked its memory before the start, guards stand by mprotect, and by markers once it is unlocked",
    .enabled(if: hasMarkers && mayLockMemory)
  )
  func lockedBefore() async {
    await #expect(processExitsWith: .success) {
      precondition(GuardTests.lockMemory())
      let locked = try contexts(20)
      #expect(allHold(locked))
      #expect(line.contains("on: markers"), "\(line)")
      #expect(line.contains(/\d\d of them by mprotect, in memory that takes no markers/), "\(line)")
      munlockall()
      let unlocked = try contexts(200)
      #expect(allHold(unlocked))
      #expect(line.contains(/[^\d]\d\d of them by mprotect/), "\(line)")
      for context in locked + unlocked { try context.fiber.destroy() }
      cco_trim(0)
      // What the slabs that are gone had by mprotect counts no more.
      let again = try contexts(200)
      #expect(allHold(again))
    }
  }

  @Test("Guards hold when memory is locked after the start, and new ones are installed", .enabled(if: mayLockMemory))
  func lockedAfter() async {
    await #expect(processExitsWith: .success) {
      let before = try contexts(100)
      precondition(GuardTests.lockMemory())
      #expect(allHold(before))
      let after = try contexts(100)
      #expect(allHold(after))
      freeMost(before)
      #expect(allHold(before))
    }
  }

  // ThreadSanitizer ends a child of many threads.
  @Test("The guards of inherited stacks hold in a forked child", .enabled(if: !Machine.hasThreadSanitizer))
  func inChild() async {
    await #expect(processExitsWith: .success) {
      inherited = try contexts(100)
      let answer = cts_in_child(
        120,
        { _ in
          guard allHold(inherited) else { return 1 }
          freeMost(inherited)
          guard allHold(inherited) else { return 2 }
          return (try? contexts(200)).map(allHold) == true ? 0 : 3
        },
        nil
      )
      #expect(answer == 0)
    }
  }
}

// Sound because it is written once, before the only fork of a process with one test.
nonisolated(unsafe) private var inherited: [Guarded] = []
