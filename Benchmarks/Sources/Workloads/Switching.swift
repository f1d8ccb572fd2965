import CProbe
import Coroutine
import Harness

// The C core beside the bare switch that it is built on. `clean` and `sticky` say whether the two sides' floating-point
// status differs in a flag; a bare switch between sides that differ takes fifteen times as long on some processors.

func addSwitching(to suite: inout Suite) {
  for (flags, name) in [(CPROBE_CLEAN, "clean"), (CPROBE_STICKY, "sticky")]
  where flags == CPROBE_CLEAN || cprobe_has_sticky_flags() {
    suite.row("raw_roundtrip_\(name)_mxcsr", 5_000_000, owner: "boost") { count in
      expect(cprobe_raw_round_trips(UInt64(count), flags), equals: UInt64(count), "jumps that arrived")
    }
    suite.row("resume_suspend_\(name)", 5_000_000) { count in
      expect(cprobe_resume_suspend(UInt64(count), flags), equals: UInt64(count), "resumes that the coroutine saw")
    }
  }
  suite.row("raw_roundtrip_reconciled", 5_000_000, owner: "boost") { count in
    expect(cprobe_raw_round_trips(UInt64(count), CPROBE_RECONCILED), equals: UInt64(count), "jumps that arrived")
  }
  // The lists that every switch exchanges are not empty here: a task-local is bound and a dynamic access is open.
  suite.row("resume_suspend_bound", 5_000_000) { count in
    let holder = Holder()
    let resumes = Bound.$value.withValue(1) {
      holder.whileAccessed { cprobe_resume_suspend(UInt64(count), CPROBE_CLEAN) }
    }
    expect(resumes, equals: UInt64(count), "resumes that the coroutine saw")
  }
  // Each side is in a catch block, so every switch exchanges two exceptions.
  suite.row("resume_suspend_exceptions", 5_000_000) { count in
    expect(cprobe_resume_suspend_handling(UInt64(count)), equals: UInt64(count), "resumes that the coroutine saw")
  }
  suite.row("create_run_finish", 2_000_000) { count in
    expect(cprobe_create_run_finish(UInt64(count)), equals: UInt64(count), "bodies that ran")
  }
}

private enum Bound {
  @TaskLocal static var value = 0
}

private final class Holder {
  var number = 0

  /// Runs `body` during a `modify` access to a property of a class, which Swift tracks at run time.
  @inline(never)
  func whileAccessed<Output>(_ body: () -> Output) -> Output { Self.modify(&number, body) }

  @inline(never)
  private static func modify<Output>(_ number: inout Int, _ body: () -> Output) -> Output {
    number &+= 1
    return body()
  }
}
