import CCoroutine
import CTestSupport
import Glibc
import Testing

/// Calls `body` while a context has this label.
private func labelled(_ fiber: Fiber, id: UInt64, name: StaticString, _ body: () throws -> Void) rethrows {
  var label = cco_label(
    id: id,
    name: UnsafeRawPointer(name.utf8Start).assumingMemoryBound(to: CChar.self),
    file: nil,
    file_length: 0,
    line: 0
  )
  try withUnsafePointer(to: &label) { label in
    fiber.context.pointee.label = label
    try body()
  }
}

/// Returns an inaccessible address, `distance` or somewhat more below a stack.
private func untouchable(_ distance: Int, below fiber: Fiber) -> UnsafeMutableRawPointer {
  var place = UInt(bitPattern: fiber.context.pointee.low) - UInt(distance)
  place -= place % UInt(Machine.page)
  while true {
    let wanted = UnsafeMutableRawPointer(bitPattern: place)!
    // MAP_FIXED_NOREPLACE, which the C library's module lacks: fails if something is mapped there already.
    let got = mmap(wanted, Machine.page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | 0x100000, -1, 0)
    if got == wanted { return wanted + 64 }
    if let got, got != MAP_FAILED { munmap(got, Machine.page) }
    place -= 64 << 10
  }
}

/// Overflows a context with this label, on a separate thread.
private func overflow(stack: Int, id: UInt64, name: StaticString, file: StaticString, line: UInt32) throws {
  _ = try onThread {
    let fiber = try Fiber(stack: stack) { _ in Machine.exhaustStack() }
    var label = cco_label(
      id: id,
      name: UnsafeRawPointer(name.utf8Start).assumingMemoryBound(to: CChar.self),
      file: UnsafeRawPointer(file.utf8Start).assumingMemoryBound(to: CChar.self),
      file_length: UInt32(file.utf8CodeUnitCount),
      line: line
    )
    try withUnsafePointer(to: &label) { label in
      fiber.context.pointee.label = label
      try fiber.resume()
    }
  }
}

@Suite("Overflow reports")
struct OverflowTests {
  @Test("An overflow report shows control characters of a name and of a file as escapes, and cuts what is huge")
  func hostileNames() async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      try overflow(stack: 64 << 10, id: 42, name: "a\n\u{1B}[2J\u{202E}b", file: "Shop/\u{9B}\n.swift", line: 12)
    }
    let words = String(decoding: died?.standardErrorContent ?? [], as: UTF8.self)
    #expect(words.contains(#"coroutine "a\n\u{1B}[2J\u{202E}b" (id 42) overflowed"#), "\(words)")
    #expect(words.contains(#"launched at Shop/\u{9B}\n.swift:12. "#), "\(words)")
  }

  @Test("An overflow report names the coroutine, its id, its stack and its launch site")
  func lastWords() async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      try overflow(stack: 512 << 10, id: 42, name: "checkout", file: "Shop/Checkout.swift", line: 12)
    }
    #expect(
      died?.lastWords.contains(
        "coroutine \"checkout\" (id 42) overflowed its stack of 512 KiB; launched at Shop/Checkout.swift:12. "
          + "Give it a larger one: co_launch(stack: .bytes(1 << 20))."
      ) == true
    )
  }

  @Test("A coroutine without a name and a launch site is named by its id")
  func nameless() async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      try overflow(stack: 16 << 10, id: 7, name: "", file: "", line: 0)
    }
    #expect(died?.lastWords.contains("coroutine (id 7) overflowed its stack of 16 KiB. Give it") == true)
  }

  @Test("If no larger stack exists, the report advises none")
  func largest() async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      try overflow(stack: 16 << 20, id: 1, name: "deep", file: "a.swift", line: 3)
    }
    #expect(died?.lastWords.contains("overflowed its stack of 16 MiB; launched at a.swift:3. No larger") == true)
  }

  @Test("A frame that jumps over its guard into a neighbour's is its own coroutine's overflow, not the neighbour's")
  func jumpIntoNeighbour() async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      _ = try onThread {
        let below = try Fiber { fiber in _ = fiber.suspend() }
        let above = try Fiber { _ in cts_write_below(below.context.pointee.low - 100) }
        precondition(below.context < above.context)
        try labelled(below, id: 8, name: "innocent") {
          try below.resume()
          try labelled(above, id: 9, name: "jumper") { try above.resume() }
        }
      }
    }
    #expect(died?.lastWords.contains("coroutine \"jumper\" (id 9) overflowed its stack of 64 KiB") == true)
    #expect(
      died?.lastWords.contains(
        /The fault is \d+ bytes below its stack, beyond its guard, in the guard of another coroutine's stack/
      ) == true
    )
    #expect(died?.lastWords.contains("innocent") == false)
  }

  @Test("A frame of 1.9 MiB on a stack of 64 KiB is reported, with a stack that would hold it")
  func largeFrame() async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      _ = try onThread {
        // A stack that lies in a gap between libraries may have hundreds of MiB mapped below it, more than the largest
        // frame that is taken for one. Later stacks lie elsewhere.
        var address = UnsafeMutableRawPointer(bitPattern: 1)!
        var fiber: Fiber
        repeat {
          fiber = try Fiber { _ in cts_write_below(address) }
          address = untouchable(1_900 << 10, below: fiber)
        } while UnsafeMutableRawPointer(fiber.context.pointee.low) - address > 128 << 20
        try labelled(fiber, id: 3, name: "large") { try fiber.resume() }
      }
    }
    let words = died?.lastWords ?? ""
    #expect(words.contains("coroutine \"large\" (id 3) overflowed its stack of 64 KiB"), "\(words)")
    #expect(words.contains(/The fault is \d+ bytes below its stack, beyond its guard/), "\(words)")
    // The address is farther below if something is mapped there.
    #expect(words.contains(/1 << 2[24]|No larger stack exists/), "\(words)")
  }

  @Test("If one context has resumed another, the running one is named", arguments: [true, false])
  func nested(_ innerOverflows: Bool) async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) { [innerOverflows] in
      _ = try onThread {
        let outer = try Fiber { _ in
          do {
            let inner = try Fiber { fiber in
              fiber.suspend()
              if innerOverflows { Machine.exhaustStack() }
            }
            try labelled(inner, id: 2, name: "inner") {
              try inner.resume()
              if innerOverflows { try inner.resume() }
              Machine.exhaustStack()
            }
          } catch {
            fatalError("\(error)")
          }
        }
        try labelled(outer, id: 1, name: "outer") { try outer.resume() }
      }
    }
    let name = innerOverflows ? "\"inner\" (id 2)" : "\"outer\" (id 1)"
    #expect(died?.lastWords.contains("coroutine \(name) overflowed its stack of 64 KiB") == true)
    #expect(died?.lastWords.contains("The fault is in its guard.") == true)
  }

  @Test("A wild pointer into the guard of a stack that is not running is not an overflow")
  func wildGuard() async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      _ = try onThread {
        let other = try Fiber { fiber in _ = fiber.suspend() }
        try other.resume()
        let fiber = try Fiber { _ in (other.context.pointee.low - 100).pointee = 1 }
        try fiber.resume()
      }
    }
    #expect(died?.lastWords.contains("overflowed") == false)
  }

  @Test("Guards made by mprotect also lead to a report")
  func byMprotect() async {
    let died = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      precondition(cco_disable(CCO_MITIGATION_GUARD_MARKERS.rawValue))
      try overflow(stack: 64 << 10, id: 9, name: "old kernel", file: "b.swift", line: 4)
    }
    #expect(died?.lastWords.contains("coroutine \"old kernel\" (id 9) overflowed its stack of 64 KiB") == true)
  }

  @Test("Without the mitigation an overflow prints no report", .enabled(if: !Machine.hasAddressSanitizer))
  func withoutTheCure() async {
    let died = await #expect(processExitsWith: .signal(SIGSEGV), observing: [\.standardErrorContent]) {
      precondition(cco_disable(CCO_MITIGATION_OVERFLOW_REPORT.rawValue))
      setenv("SWIFT_BACKTRACE", "enable=no", 1)
      try overflow(stack: 64 << 10, id: 9, name: "mute", file: "b.swift", line: 4)
    }
    #expect(died?.lastWords.contains("mute") == false)
  }

  @Test("Without guards an overflow is not noticed where it happens", .enabled(if: !Machine.isSanitized))
  func withoutGuards() async {
    await #expect(processExitsWith: .success) {
      precondition(cco_disable(CCO_MITIGATION_GUARDS.rawValue))
      @inline(never)
      func sink(_ fiber: Fiber) -> Int {
        withUnsafeTemporaryAllocation(of: Int.self, capacity: 8) { frame in
          frame.initialize(repeating: 1)
          let isBelow = UInt(bitPattern: frame.baseAddress) < UInt(bitPattern: fiber.context.pointee.low) - (8 << 10)
          return frame[3] + (isBelow ? 0 : sink(fiber))
        }
      }
      // The neighbour below is unused; its memory is overwritten.
      let below = try Fiber(stack: 64 << 10) { _ in }
      let fiber = try Fiber(stack: 64 << 10) { fiber in _ = sink(fiber) }
      precondition(below.context < fiber.context)
      try fiber.resume()
      #expect(fiber.state == CCO_FINISHED)
    }
  }

  @Test("A fault elsewhere goes to the previous handler, with all its arguments")
  func otherFaults() async {
    await #expect(processExitsWith: .exitCode(77)) {
      var action = sigaction()
      action.sa_flags = SA_SIGINFO | Int32(bitPattern: UInt32(SA_NODEFER))
      action.__sigaction_handler.sa_sigaction = { signal, info, context in
        _exit(signal == SIGSEGV && info?.pointee._sifields._sigfault.si_addr == wild && context != nil ? 77 : 78)
      }
      sigaction(SIGSEGV, &action, nil)
      _ = try onThread {
        let fiber = try Fiber { _ in wild.storeBytes(of: 1, as: UInt8.self) }
        try fiber.resume()
      }
    }
  }

  @Test("After the report the previous handler runs, on the alternate stack")
  func chained() async {
    let died = await #expect(processExitsWith: .exitCode(79), observing: [\.standardErrorContent]) {
      var action = sigaction()
      action.__sigaction_handler.sa_handler = { _ in _exit(79) }
      sigaction(SIGSEGV, &action, nil)
      try overflow(stack: 64 << 10, id: 5, name: "chained", file: "c.swift", line: 8)
    }
    #expect(died?.lastWords.contains("coroutine \"chained\" (id 5)") == true)
  }

  @Test("A SIGSEGV that another process sends still ends the process")
  func sent() async {
    await #expect(processExitsWith: .overflow) {
      _ = try onThread {
        let fiber = try Fiber { _ in _ = raise(SIGSEGV) }
        try fiber.resume()
      }
    }
  }

  @Test(
    "The first process of a container survives a SIGBUS that is sent, and would report an overflow after it",
    .enabled(if: !Machine.isSanitized)
  )
  func sentAndSurvived() async {
    await #expect(processExitsWith: .success) {
      let code = cts_as_first_process(
        30,
        { _ in
          cco_guard_thread()
          var action = sigaction()
          sigaction(SIGBUS, nil, &action)
          let before = unsafeBitCast(action.__sigaction_handler.sa_sigaction, to: UInt.self)
          // The handler has run when raise returns, because the signal is this thread's. The second one comes while the
          // handler would be gone, if the first had removed it.
          for _ in 0..<2 { raise(SIGBUS) }
          sigaction(SIGBUS, nil, &action)
          let after = unsafeBitCast(action.__sigaction_handler.sa_sigaction, to: UInt.self)
          return before != 0 && before == after ? 0 : 1
        },
        nil
      )
      // Where the kernel lets nobody make such a process, there is nothing to test.
      #expect(code == 0 || code == -1000)
    }
  }

  @Test("Each thread has its own alternate signal stack, which is freed when the thread ends")
  func signalStacks() async throws {
    func current() -> stack_t {
      var stack = stack_t()
      sigaltstack(nil, &stack)
      return stack
    }
    let stacks = try concurrently(threads: 3) { _ in current() }
    for stack in stacks { #expect(stack.ss_flags & Int32(SS_DISABLE) == 0 && stack.ss_size >= 32 << 10) }
    if Machine.isSanitized { return }
    // In a process of its own, whose mappings no other test changes.
    await #expect(processExitsWith: .success) {
      let before = Machine.mappings
      for _ in 0..<200 { _ = try onThread { cco_guard_thread() } }
      #expect(Machine.mappings < before + 100)
    }
  }
}

/// A page that must not be touched.
///
/// Sound because it is constant.
nonisolated(unsafe) private let wild = mmap(nil, Machine.page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)!
