import Coroutine
import CoroutineHTTP
import CoroutineLogging
import CoroutineMetrics
import CoroutineNIO
import CoroutinePostgres
import CoroutineServiceLifecycle
import CoroutineWork

/// Waits for a job: the modules without their traits do not get in the way of the library's own verbs.
public func result(of job: Job<Int>) throws -> Int { try co_await(job) }
