//! The callbacks of the settings, and warnings about settings.

use crate::panics::catch_panic;
use crate::server::{Context, api, info, string_bytes, warn};
use crate::server_events;
use crate::settings::{ALL, Setting, quarantine, shortened_default_lease};
use lockward_core::parse_i64;
use redis_module::raw;
use std::ffi::{c_char, c_int, c_longlong, c_void};
use std::sync::Mutex;
use std::{mem, slice};

/// Registers every setting. The value of a setting comes from the first of these places that has a value: the
/// configuration, the module's arguments, the default. If an argument is wrong, the function logs the mistake and
/// returns false.
///
/// # Safety
/// `argv` must point to an array of `argc` strings of the server.
pub unsafe fn register(context: Context, argv: *mut *mut raw::RedisModuleString, argc: c_int) -> bool {
    let count = usize::try_from(argc).unwrap_or_default();
    // SAFETY: the caller promises `argc` valid strings. Without arguments the pointer is not used.
    let strings = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(argv, count) } };
    // SAFETY: the caller promises valid strings.
    let arguments: Vec<&[u8]> = strings.iter().map(|string| unsafe { string_bytes(*string) }).collect();
    let Some(defaults) = defaults(&arguments) else { return false };
    let registered =
        ALL.iter().zip(defaults).all(|(setting, default)| register_one(context, setting, default));
    // SAFETY: the context is valid while the server loads the module.
    let loaded = registered
        && unsafe { api!(RedisModule_LoadConfigs(context.as_ptr())) == raw::REDISMODULE_OK as c_int };
    if loaded {
        warn_of_contradiction();
    }
    loaded
}

/// The setting of the server that decides whether keys are evicted.
pub const EVICTION_POLICY: &[u8] = b"maxmemory-policy";

/// Warns if the policy of the server allows evictions. The warning is also logged when there is no memory limit,
/// because a limit may be set later. Every lock has a TTL, so every policy except noeviction evicts locks too.
pub fn warn_of_eviction() {
    let Some(policy) = info::text(c"memory", c"maxmemory_policy") else { return };
    if policy != b"noeviction" {
        warn(&format!(
            "maxmemory-policy is {}: at maxmemory the server evicts locks that are held. The module keeps these \
                 locks in memory beside the keyspace, so an eviction frees little memory. Set maxmemory-policy to \
                 noeviction, or keep the locks on a separate server.",
            policy.escape_ascii()
        ));
    }
}

/// If the settings contradict each other, this function warns once and names the default lease that the module uses.
fn warn_of_contradiction() {
    static LAST: Mutex<Option<(u64, u64)>> = Mutex::new(None);
    let shortened = shortened_default_lease();
    let Ok(last) = LAST.lock().map(|mut last| mem::replace(&mut *last, shortened)) else { return };
    if let Some((set, is)) = shortened.filter(|_| shortened != last) {
        warn(&format!(
            "lock.default-lease is {set}, but lock.max-lease or lock.quarantine allows no lease above {is}, \
                 so the default lease is {is} ms"
        ));
    }
}

fn register_one(context: Context, setting: &'static Setting, default: i64) -> bool {
    // SAFETY: the context is valid while the server loads the module, and the setting is static.
    let status = unsafe {
        api!(RedisModule_RegisterNumericConfig(
            context.as_ptr(),
            setting.name.as_ptr(),
            default,
            raw::REDISMODULE_CONFIG_DEFAULT,
            setting.least,
            setting.most,
            Some(get),
            Some(set),
            Some(apply),
            std::ptr::from_ref(setting).cast_mut().cast(),
        ))
    };
    status == raw::REDISMODULE_OK as c_int
}

/// The numbers of all settings, from the module's arguments (`name number ...`).
fn defaults(arguments: &[&[u8]]) -> Option<Vec<i64>> {
    let mut numbers = [None; ALL.len()];
    for pair in arguments.chunks(2) {
        let [name, value] = pair else {
            let name = pair.concat();
            return wrong(&format!("module argument '{}' lacks its value", name.escape_ascii()));
        };
        let named = |setting: &&Setting| name.eq_ignore_ascii_case(setting.name.to_bytes());
        let Some((setting, number)) = ALL.iter().zip(&mut numbers).find(|(setting, _)| named(setting)) else {
            return wrong(&format!("unknown module argument '{}'", name.escape_ascii()));
        };
        let range = setting.least..=setting.most;
        let Some(given) = parse_i64(value).filter(|given| range.contains(given)) else {
            let name = setting.name.to_string_lossy();
            return wrong(&format!("{name} must be a number from {} to {}", setting.least, setting.most));
        };
        if number.replace(given).is_some() {
            return wrong(&format!("module argument '{}' is given twice", name.escape_ascii()));
        }
    }
    Some(ALL.iter().zip(numbers).map(|(setting, number)| number.unwrap_or(setting.default)).collect())
}

fn wrong<T>(text: &str) -> Option<T> {
    warn(text);
    None
}

unsafe extern "C" fn get(_name: *const c_char, setting: *mut c_void) -> c_longlong {
    catch_panic("Config", 0, || {
        // SAFETY: the pointer is the setting that `register_one` passed to the server.
        unsafe { setting.cast::<Setting>().as_ref() }.map_or(0, Setting::get)
    })
}

unsafe extern "C" fn set(
    _name: *const c_char,
    number: c_longlong,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    catch_panic("Config", raw::REDISMODULE_ERR as c_int, || {
        // SAFETY: the pointer is the setting that `register_one` passed to the server.
        if let Some(setting) = unsafe { setting.cast::<Setting>().as_ref() } {
            let before = quarantine();
            setting.set(number);
            if quarantine() != before {
                server_events::quarantine_changed(quarantine().unwrap_or_default());
            }
        }
        raw::REDISMODULE_OK as c_int
    })
}

/// The server calls this function after CONFIG SET has set all named settings.
unsafe extern "C" fn apply(
    _context: *mut raw::RedisModuleCtx,
    _setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    catch_panic("Config", (), warn_of_contradiction);
    raw::REDISMODULE_OK as c_int
}
