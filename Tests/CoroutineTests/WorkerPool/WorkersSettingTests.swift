import Testing

@testable import Coroutine

import Glibc

/// The variable COROUTINE_LANES, read once, when the shared scheduler is first used.
struct WorkersSettingTests {
  @Test func `sets how many workers there are`() async {
    await #expect(processExitsWith: .success) {
      setenv("COROUTINE_WORKERS", "3", 1)
      let answer = try co_launch { 1 }.wait()
      precondition(answer == 1)
      precondition(WorkerPool.shared.workers.count == 3)
    }
  }

  @Test func `empty counts as unset`() async {
    await #expect(processExitsWith: .success) {
      setenv("COROUTINE_WORKERS", "", 1)
      precondition(Processors.workers == Processors.usable)
    }
  }

  @Test(arguments: ["0", "65", "-1", "two", "1.5"])
  func `what is no number of workers traps with a sentence`(setting: String) async {
    // Each exit test is a process of its own, to which nothing can be handed on but what is written here.
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [setting] in
      setenv("COROUTINE_WORKERS", setting, 1)
      co_launch {}
    }
    #expect(result?.said("COROUTINE_WORKERS is '\(setting)'. Set it to a number of lanes from 1 to 64") == true)
  }
}
