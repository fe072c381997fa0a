//! The functions of the server, and a check that the server has all functions that the module needs.

use redis_module::raw;
use std::ffi::c_int;

/// Calls a function of the module API by its name. The function must be in the list below, because
/// [`is_recent_enough`] has checked that all functions in this list exist.
macro_rules! api {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        const { $crate::server::known::$function }
        // A check in each call would cost a tenth of the time that the module itself spends on a command.
        redis_module::raw::$function.unwrap_unchecked()($($argument),*)
    }};
}
pub(crate) use api;

macro_rules! needed {
    ($($function:ident)*) => {
        #[allow(non_upper_case_globals, reason = "as the server names them")]
        pub mod known {
            $(pub const $function: () = ();)*
        }

        fn is_complete() -> bool {
            // SAFETY: the server set these function pointers when the module was loaded.
            unsafe { true $(&& { raw::$function }.is_some())* }
        }
    };
}

// The functions that are called without a check. All of them exist in Redis 7.0 and later.
needed! {
    RedisModule_AvoidReplicaTraffic RedisModule_BlockClient RedisModule_Call RedisModule_CallReplyStringPtr
    RedisModule_CallReplyArrayElement RedisModule_CallReplyInteger
    RedisModule_CallReplyType RedisModule_CloseKey RedisModule_CreateCommand RedisModule_CreateDataType
    RedisModule_CreateString RedisModule_CreateTimer RedisModule_DefragAlloc RedisModule_DefragCursorGet
    RedisModule_DefragCursorSet RedisModule_DefragShouldStop RedisModule_DeleteKey
    RedisModule_DigestAddLongLong RedisModule_DigestAddStringBuffer RedisModule_DigestEndSequence
    RedisModule_EmitAOF RedisModule_Free RedisModule_FreeCallReply RedisModule_FreeServerInfo
    RedisModule_FreeString RedisModule_GetAbsExpire RedisModule_GetBlockedClientHandle
    RedisModule_GetClientId RedisModule_GetClientUserNameById RedisModule_GetCommand RedisModule_GetCommandKeysWithFlags RedisModule_GetContextFlags RedisModule_GetDbIdFromIO
    RedisModule_GetDbIdFromModuleKey
    RedisModule_GetDbIdFromOptCtx RedisModule_GetDetachedThreadSafeContext RedisModule_GetKeyNameFromIO
    RedisModule_GetKeyNameFromOptCtx RedisModule_GetSelectedDb RedisModule_GetServerInfo
    RedisModule_InfoAddFieldULongLong RedisModule_InfoAddSection RedisModule_InfoBeginDictField
    RedisModule_InfoEndDictField RedisModule_IsIOError RedisModule_IsKeysPositionRequest RedisModule_KeyAtPosWithFlags RedisModule_KeyType RedisModule_LoadConfigs
    RedisModule_LoadStringBuffer RedisModule_LoadUnsigned RedisModule_Log RedisModule_MallocSize
    RedisModule_Milliseconds RedisModule_ModuleTypeGetType RedisModule_ModuleTypeGetValue
    RedisModule_ModuleTypeSetValue RedisModule_MonotonicMicroseconds RedisModule_NotifyKeyspaceEvent
    RedisModule_OpenKey RedisModule_RegisterCommandFilter RedisModule_RegisterInfoFunc RedisModule_RegisterNumericConfig RedisModule_Replicate
    RedisModule_ReplicateVerbatim RedisModule_ReplyWithArray RedisModule_ReplyWithCallReply RedisModule_ReplyWithError
    RedisModule_ReplyWithLongLong RedisModule_ReplyWithMap RedisModule_ReplyWithNull
    RedisModule_ReplyWithNullArray RedisModule_ReplyWithSimpleString RedisModule_ReplyWithStringBuffer
    RedisModule_SaveStringBuffer RedisModule_SaveUnsigned RedisModule_SelectDb
    RedisModule_ServerInfoGetFieldC RedisModule_ServerInfoGetFieldUnsigned RedisModule_SetAbsExpire
    RedisModule_SetCommandInfo RedisModule_SetDisconnectCallback RedisModule_SetModuleOptions
    RedisModule_SignalModifiedKey RedisModule_StopTimer RedisModule_StringPtrLen
    RedisModule_SubscribeToKeyspaceEvents RedisModule_SubscribeToServerEvent RedisModule_UnblockClient
    RedisModule_UnregisterCommandFilter
    RedisModule_WrongArity
}

/// The number of the oldest version that has all functions of the list.
const OLDEST: c_int = 0x0007_0000;

/// The version of the server in the form 0x00MMmmpp. Zero if the server is too old to report its version.
pub fn version() -> c_int {
    // SAFETY: the server set this function pointer when the module was loaded, and the function takes no
    // arguments.
    unsafe { raw::RedisModule_GetServerVersion.map_or(0, |version| version()) }
}

/// Whether the server has all functions that the module needs. Must be called before any other function of
/// the server except the log.
pub fn is_recent_enough() -> bool {
    version() >= OLDEST && is_complete()
}
