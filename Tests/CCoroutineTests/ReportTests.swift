import CCoroutine
import CCoroutineRuntime
import CTestSupport
import Glibc
import Testing

@Suite("The report of the C core")
struct ReportTests {
  @Test("The report has a line for each hazard, with its mitigation")
  func report() throws {
    try onThread {
      let lines = String(cString: cco_report()).split(separator: "\n")
      for subject in [
        "floating point", "access sets", "task-locals", "current Task", "C++ exceptions", "stack guards",
        "overflow report", "switch path", "annotations",
      ] {
        #expect(lines.contains { $0.hasPrefix(subject) && $0.count > subject.count + 4 })
      }
    }
  }

  @Test("With Swift's runtime present every mitigation is active, and uses its fast form")
  func mitigations() throws {
    try onThread {
      cco_start()
      cco_guard_thread()
      let ofCore = [
        CCO_MITIGATION_FLOATING_POINT, CCO_MITIGATION_GUARDS, CCO_MITIGATION_OVERFLOW_REPORT, CCO_MITIGATION_EXCEPTIONS,
      ]
      let ofSwift = [
        CCO_MITIGATION_ACCESSES, CCO_MITIGATION_ACCESS_OFFSET, CCO_MITIGATION_TASK_LOCALS, CCO_MITIGATION_TASKS,
        CCO_MITIGATION_TASK_MOVES,
      ]
      for mitigation in ofCore.map(\.rawValue) + ofSwift.map(\.rawValue) {
        #expect(cco_mitigations() & mitigation != 0, "\(String(cString: cco_report()))")
      }
      #expect((cco_facts.careful != 0) == Machine.isSanitized)
    }
  }

  @Test("A disabled mitigation is reported as off")
  func disabled() async {
    await #expect(processExitsWith: .success) {
      let all: UInt32 = 0x3FF
      precondition(cco_disable(all))
      try onThread { cco_guard_thread() }
      let report = String(cString: cco_report())
      #expect(report.split(separator: "\n").count { $0.contains("disabled by a test") } == 7, "\(report)")
      #expect(cco_mitigations() == 0)
      // It is too late now.
      #expect(!cco_disable(all))
    }
  }

  // ThreadSanitizer has a handler of its own, and remembers the program's for itself.
  @Test(
    "A handler for faults that the system only pretends to install is reported as off",
    .enabled(if: !Machine.isSanitized)
  )
  func ignoredHandler() async {
    await #expect(processExitsWith: .success) {
      precondition(cts_pretend(UInt32(CTS_FAULT_HANDLERS_ARE_IGNORED)) == 0)
      try onThread { cco_guard_thread() }
      #expect(String(cString: cco_report()).contains(/overflow report +off/))
      #expect(cco_mitigations() & CCO_MITIGATION_OVERFLOW_REPORT.rawValue == 0)
    }
  }

  @Test("Once the program has a handler for faults of its own, the report says so")
  func replacedHandler() async {
    await #expect(processExitsWith: .success) {
      try onThread { cco_guard_thread() }
      #expect(String(cString: cco_report()).contains(/overflow report +on/))
      signal(SIGSEGV, SIG_DFL)
      #expect(String(cString: cco_report()).contains(/overflow report +unknown: the program has installed a handler/))
    }
  }

  @Test("The C files were compiled with the sanitizers that the process runs with")
  func sanitizers() {
    let compiled = cco_compiled_sanitizers()
    #expect((dlsym(nil, "__asan_init") != nil) == (compiled & CCO_ADDRESS_SANITIZER.rawValue != 0))
    #expect((dlsym(nil, "__tsan_init") != nil) == (compiled & CCO_THREAD_SANITIZER.rawValue != 0))
    #expect((compiled & CCO_LEAK_SANITIZER.rawValue != 0) == (compiled & CCO_ADDRESS_SANITIZER.rawValue != 0))
  }
}

@Suite("The words of a thread")
struct ThreadWordsTests {
  @Test("Each thread has words of its own, and a new thread's are empty")
  func ownWords() throws {
    let carousel = Carousel(threads: 3)
    defer { carousel.stop() }
    var words: [UnsafeMutablePointer<cco_thread_words>] = []
    for index in 1...3 {
      try carousel.next {
        #expect(cco_layer().pointee.carrier == nil)
        words.append(cco_thread())
        cco_layer().pointee.carrier = UnsafeMutableRawPointer(bitPattern: index)
      }
    }
    #expect(Set(words).count == 3)
    for index in 1...3 {
      try carousel.next {
        #expect(cco_thread() == words[index - 1])
        #expect(cco_layer().pointee.carrier == UnsafeMutableRawPointer(bitPattern: index))
        cco_layer().pointee.carrier = nil
      }
    }
  }

  @Test("After a switch that changed threads, one function reads the words of the thread it is on now")
  func afterMigration() throws {
    let carousel = Carousel(threads: 3)
    defer { carousel.stop() }
    var wrong = 0
    var expected: UnsafeMutablePointer<cco_thread_words>?
    let fiber = try Fiber { fiber in
      var before = cco_thread()
      for _ in 0..<1000 {
        fiber.suspend()
        let after = cco_thread()
        if after != expected || after == before { wrong += 1 }
        before = after
      }
    }
    while fiber.state != CCO_FINISHED {
      try carousel.next {
        expected = cco_thread()
        try fiber.resume()
      }
    }
    #expect(wrong == 0)
    try fiber.destroy()
  }
}
