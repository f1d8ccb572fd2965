import Coroutine
import Foundation

// The README's three ways to get the result of a login.

func onThread(_ site: URL) throws -> Data { try login(site).blockingWait() }
func inAsyncCode(_ site: URL) async throws -> Data { try await login(site).value }
func inCoroutine(_ site: URL) throws -> Data { try login(site).join() }
