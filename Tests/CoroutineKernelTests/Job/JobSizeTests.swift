import CCoroutineRuntime
import CTestSupport
import Testing

@testable import Coroutine

/// The object that users hold, and the cell behind it.
@Suite("The size of a job")
struct JobSizeTests {
  private func size(of object: AnyObject) -> UInt { cts_allocated_bytes(Unmanaged.passUnretained(object).toOpaque()) }

  @Test func `is at most 24 bytes and a cell for each type of result`() throws {
    let kinds: [() -> AnyJob] = [
      { co_launch {} },
      { co_launch { 1 } },
      { co_launch { "text" } },
      { co_launch(name: "name") { [1, 2, 3] } },
      { co_launch(start: .lazy) { (1, 2, 3, 4, 5) } },
    ]
    for kind in kinds {
      // Many, because the allocator gives more where the rest of a chunk would be too small to keep, and the other
      // tests of this process may have left many such chunks.
      let jobs = (0..<2_000).map { _ in kind() }
      #expect(jobs.map(size).min() == 24)
      for job in jobs { job.cancel() }
    }
  }

  @Test func `is the sum of the parts that docs/evolution/0044 lists`() {
    #expect(MemoryLayout<JobRecord>.size == 160)
    #expect(MemoryLayout<Completion>.size == 80)
    #expect(JobMemory.objectOffset == 240)
    #expect(CCO_CELL_BYTES == 256)
  }
}
