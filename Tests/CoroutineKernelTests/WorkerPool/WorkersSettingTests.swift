import Glibc
import Testing

@testable import Coroutine

/// The variable COROUTINE_WORKERS, read once, when the shared scheduler is first used.
struct WorkersSettingTests {
  @Test func `sets how many workers there are`() async {
    await #expect(processExitsWith: .success) {
      setenv("COROUTINE_WORKERS", "3", 1)
      let answer = try synchronously { try co_launch { 1 }.blockingWait() }
      precondition(answer == 1)
      precondition(WorkerPool.shared.workers.count == 3)
    }
  }

  @Test func `an empty value counts as unset`() async {
    await #expect(processExitsWith: .success) {
      setenv("COROUTINE_WORKERS", "", 1)
      precondition(Processors.workers == Processors.usable)
    }
  }

  @Test(arguments: ["0", "65", "-1", "two", "1.5"])
  func `an invalid number of workers traps with a message`(setting: String) async {
    // Each exit test is a separate process, which gets only the values written here.
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [setting] in
      setenv("COROUTINE_WORKERS", setting, 1)
      co_launch {}
    }
    #expect(result?.said("COROUTINE_WORKERS is '\(setting)'. Set it to a number of workers from 1 to 64") == true)
  }
}
