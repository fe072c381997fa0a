package org.springframework.integration.test.util;

import org.springframework.beans.DirectFieldAccessor;

/** Replaces Spring Integration's class: reads private fields. */
public final class TestUtils {
    private TestUtils() {}

    @SuppressWarnings("unchecked")
    public static <T> T getPropertyValue(Object root, String field) {
        return (T) new DirectFieldAccessor(root).getPropertyValue(field);
    }
}
